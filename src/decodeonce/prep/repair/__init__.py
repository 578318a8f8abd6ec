"""Rebuild damaged rows and files of a store from the rest of the store, its source or another store."""
