"""Parsers for the files that sources read: archives, lists, tables and annotations."""
