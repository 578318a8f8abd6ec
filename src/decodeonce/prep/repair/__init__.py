"""Make damaged rows and small files of a store again, from what the store itself or its source still has."""

from decodeonce.prep.repair.repair import Repair, repair_store

__all__ = ["Repair", "repair_store"]
