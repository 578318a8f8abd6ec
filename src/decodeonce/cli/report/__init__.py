"""The command `prep report`, which writes an HTML page about a store."""
