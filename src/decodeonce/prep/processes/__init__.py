"""Processes that work for this one: how they start, what they are told and say, how they end."""
