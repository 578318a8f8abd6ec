"""The sources a build can read; a plan names one by its kind, root and facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from decodeonce.prep.sources.base import WITH_BOXES, Entry, Source
from decodeonce.prep.sources.boxed import BoxedSource
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.prep.sources.imagenet.archive import ImagenetTarSource
from decodeonce.prep.sources.imagenet.files import ImagenetFlatSource, ImagenetSource
from decodeonce.prep.sources.imagenet.kaggle import ImagenetZipSource
from decodeonce.prep.sources.imagenet.recognise import open_imagenet
from decodeonce.prep.sources.listed import ListSource, open_list
from decodeonce.prep.sources.parquet import ParquetSource, open_parquet
from decodeonce.prep.sources.stored import StoreSource
from decodeonce.prep.sources.webdataset import WebdatasetSource, open_webdataset

_IMAGENET = (ImagenetSource, ImagenetFlatSource, ImagenetTarSource, ImagenetZipSource)
_CLASSES = (FolderSource, *_IMAGENET, ListSource, WebdatasetSource, ParquetSource, StoreSource)
SOURCES: dict[str, Callable[..., Source]] = {source.kind: source for source in _CLASSES}

__all__ = [
    "SOURCES",
    "BoxedSource",
    "Entry",
    "FolderSource",
    "ImagenetSource",
    "ListSource",
    "ParquetSource",
    "Source",
    "StoreSource",
    "WebdatasetSource",
    "open_imagenet",
    "open_list",
    "open_parquet",
    "open_source",
    "open_webdataset",
]


def open_source(kind: str, root: Path, facts: dict[str, Any]) -> Source:
    """The source that a plan names; boxes are in the plan itself."""
    return SOURCES[kind.removesuffix(WITH_BOXES)](root, **facts)
