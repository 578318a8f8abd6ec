"""`prep bench`: measure in under a minute what limits a build or a training run on this machine."""
