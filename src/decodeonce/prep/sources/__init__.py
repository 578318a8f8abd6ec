"""The sources a build can read; a plan names one by its kind, root and facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from decodeonce.prep.sources.base import Entry, Source
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.prep.sources.imagenet import ImagenetSource, open_imagenet

SOURCES: dict[str, Callable[..., Source]] = {source.kind: source for source in (FolderSource, ImagenetSource)}

__all__ = ["SOURCES", "Entry", "FolderSource", "ImagenetSource", "Source", "open_imagenet", "open_source"]


def open_source(kind: str, root: Path, facts: dict[str, Any]) -> Source:
    """The source that a plan names."""
    return SOURCES[kind](root, **facts)
