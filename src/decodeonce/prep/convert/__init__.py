"""Convert finished stores to a new store: reshard, downscale, select, sort, shuffle, merge or change the container."""

from decodeonce.prep.convert.convert import Conversion, convert

__all__ = ["Conversion", "convert"]
