"""The kinds of input that a build can read. A plan names a source by kind, root and facts."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decodeonce.lazy import lazy_imports

if TYPE_CHECKING:
    from decodeonce.prep.sources.base import Source as Source
    from decodeonce.prep.sources.boxed import BoxedSource as BoxedSource
    from decodeonce.prep.sources.dataset import DatasetSource as DatasetSource
    from decodeonce.prep.sources.dataset import open_dataset as open_dataset
    from decodeonce.prep.sources.file_list import ListSource as ListSource
    from decodeonce.prep.sources.file_list import open_list as open_list
    from decodeonce.prep.sources.folder import FolderSource as FolderSource
    from decodeonce.prep.sources.folder import open_folder as open_folder
    from decodeonce.prep.sources.imagenet import ImagenetSource as ImagenetSource
    from decodeonce.prep.sources.imagenet import open_imagenet as open_imagenet
    from decodeonce.prep.sources.parquet import ParquetSource as ParquetSource
    from decodeonce.prep.sources.parquet import open_parquet as open_parquet
    from decodeonce.prep.sources.webdataset import WebdatasetSource as WebdatasetSource
    from decodeonce.prep.sources.webdataset import open_webdataset as open_webdataset


class Registered(NamedTuple):
    """The "module:name" paths of a source's class and opener. Modules are imported when they are needed.

    Attributes:
        source: The class, a subclass of `Source`. Workers make an instance from the kind, root and facts of a plan.
        opener: The function that `prep build KIND SRC OUT` calls as `opener(SRC, classes=..., follow_links=..., ...)`;
            default "" if the source has no command. A keyword-only parameter `root: Annotated[Path, "help text"]`
            becomes the flag --root of this kind. The first paragraph of the opener's docstring is the help text of
            `prep build KIND`.
        suffixes: Suffixes of the files that the source reads, so that SRC may be a pattern; default none.
        is_path: Whether SRC is the path of a file or folder, or a pattern of paths; default True.
    """

    source: str
    opener: str = ""
    suffixes: tuple[str, ...] = ()
    is_path: bool = True


_HERE = "decodeonce.prep.sources"
SOURCES = {
    "imagenet": Registered(f"{_HERE}.imagenet:ImagenetSource", f"{_HERE}.imagenet:open_imagenet"),
    "imagenet-flat": Registered(f"{_HERE}.imagenet:ImagenetFlatSource"),
    "imagenet-tar": Registered(f"{_HERE}.imagenet:ImagenetTarSource"),
    "imagenet-zip": Registered(f"{_HERE}.imagenet:ImagenetZipSource"),
    "folder": Registered(f"{_HERE}.folder:FolderSource", f"{_HERE}.folder:open_folder"),
    "list": Registered(f"{_HERE}.file_list:ListSource", f"{_HERE}.file_list:open_list"),
    "webdataset": Registered(
        f"{_HERE}.webdataset:WebdatasetSource", f"{_HERE}.webdataset:open_webdataset", (".tar", ".tar.gz", ".tgz")
    ),
    "parquet": Registered(f"{_HERE}.parquet:ParquetSource", f"{_HERE}.parquet:open_parquet", (".parquet",)),
    "dataset": Registered(f"{_HERE}.dataset:DatasetSource", f"{_HERE}.dataset:open_dataset", is_path=False),
    "store": Registered("decodeonce.prep.convert.source:StoreSource"),
}
KINDS = tuple(kind for kind, registered in SOURCES.items() if registered.opener)  # those that have a command
__getattr__, __dir__ = lazy_imports(__name__, __file__)


def open_source(kind: str, root: Path, facts: dict[str, Any]) -> Source:
    """Make the source that a plan names."""
    from decodeonce.prep.sources.base import WITH_BOXES

    if not kind.endswith(WITH_BOXES):
        source: Source = _load(SOURCES[kind].source)(root, **facts)
        return source
    from decodeonce.prep.sources.boxed import BoxedSource

    return BoxedSource.from_facts(open_source(kind.removesuffix(WITH_BOXES), root, facts["source"]), facts)


def find_opener(kind: str) -> Callable[..., Source]:
    """Return the function that opens SRC as one of `KINDS`."""
    opener: Callable[..., Source] = _load(SOURCES[kind].opener)
    return opener


def _load(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)
