"""Convert finished stores to a new store: reshard, downscale, select, sort, shuffle, merge or change the container."""
