"""The exceptions of decodeonce: one base, and a kind for each thing a caller does differently."""

from __future__ import annotations


class DecodeonceError(Exception):
    """Base of all; its text names the file, what was found, what was expected, and the next step (exit code 1)."""


class StoreError(DecodeonceError):
    """A store, or a file in it, is not what its manifest or the format says."""


class BuildError(DecodeonceError):
    """A build cannot go on as asked: the source, the recipe, the decoders, the place or the rejects forbid it."""


class Stopped(DecodeonceError):
    """A build stopped early with all that is done kept: run the same command again (exit code 75)."""
