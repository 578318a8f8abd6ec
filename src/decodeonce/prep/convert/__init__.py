"""Make a store of finished stores: another container, other shards, smaller rows, a selection, several joined."""

from decodeonce.prep.convert.convert import Conversion, convert

__all__ = ["Conversion", "convert"]
