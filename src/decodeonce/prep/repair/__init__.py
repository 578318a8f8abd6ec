"""Rebuild damaged rows and files of a store from the rest of the store, its source or another store."""

from decodeonce.prep.repair.repair import Repair, repair_store

__all__ = ["Repair", "repair_store"]
