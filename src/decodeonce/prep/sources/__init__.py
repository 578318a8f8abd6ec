"""The sources a build can read; a plan names one by its kind, root and facts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decodeonce.lazy import importing
from decodeonce.prep.sources.base import WITH_BOXES, Source

if TYPE_CHECKING:
    from decodeonce.prep.sources.boxed import BoxedSource
    from decodeonce.prep.sources.file_list import ListSource, open_list
    from decodeonce.prep.sources.folder import FolderSource
    from decodeonce.prep.sources.imagenet.files import ImagenetSource
    from decodeonce.prep.sources.imagenet.recognise import open_imagenet
    from decodeonce.prep.sources.parquet import ParquetSource, open_parquet
    from decodeonce.prep.sources.webdataset import WebdatasetSource, open_webdataset

# The class of each kind of source. A worker imports the one that its plan names.
SOURCES = {
    "imagenet": "decodeonce.prep.sources.imagenet.files:ImagenetSource",
    "imagenet-flat": "decodeonce.prep.sources.imagenet.files:ImagenetFlatSource",
    "imagenet-tar": "decodeonce.prep.sources.imagenet.archive:ImagenetTarSource",
    "imagenet-zip": "decodeonce.prep.sources.imagenet.kaggle:ImagenetZipSource",
    "folder": "decodeonce.prep.sources.folder:FolderSource",
    "list": "decodeonce.prep.sources.file_list:ListSource",
    "webdataset": "decodeonce.prep.sources.webdataset:WebdatasetSource",
    "parquet": "decodeonce.prep.sources.parquet:ParquetSource",
    "store": "decodeonce.prep.convert.source:StoreSource",
}
_HOMES = {
    "BoxedSource": "decodeonce.prep.sources.boxed",
    "FolderSource": "decodeonce.prep.sources.folder",
    "ImagenetSource": "decodeonce.prep.sources.imagenet.files",
    "ListSource": "decodeonce.prep.sources.file_list",
    "ParquetSource": "decodeonce.prep.sources.parquet",
    "WebdatasetSource": "decodeonce.prep.sources.webdataset",
    "open_imagenet": "decodeonce.prep.sources.imagenet.recognise",
    "open_list": "decodeonce.prep.sources.file_list",
    "open_parquet": "decodeonce.prep.sources.parquet",
    "open_webdataset": "decodeonce.prep.sources.webdataset",
}
__all__ = [
    "SOURCES",
    "BoxedSource",
    "FolderSource",
    "ImagenetSource",
    "ListSource",
    "ParquetSource",
    "Source",
    "WebdatasetSource",
    "open_imagenet",
    "open_list",
    "open_parquet",
    "open_source",
    "open_webdataset",
]

__getattr__, __dir__ = importing(__name__, _HOMES)


def open_source(kind: str, root: Path, facts: dict[str, Any]) -> Source:
    """The source that a plan names; boxes are in the plan itself."""
    module, _, name = SOURCES[kind.removesuffix(WITH_BOXES)].partition(":")
    source: Source = getattr(import_module(module), name)(root, **facts)
    return source
