"""The kinds of input that a build can read. A plan names a source by kind, root and arguments."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decodeonce.store.layout import Json

if TYPE_CHECKING:
    from decodeonce.prep.sources.base import Source


class Registered(NamedTuple):
    """The "module:name" paths of a source's class and opener. Modules are imported when they are needed.

    Attributes:
        source: The class, a subclass of `Source`. Workers make an instance from the kind, root and arguments of a plan.
        opener: The function that `prep build KIND SRC OUT` calls as `opener(SRC, classes=..., follow_links=..., ...)`;
            default "" if the source has no command. A keyword-only parameter `root: Annotated[Path, "help text"]`
            becomes the flag --root of this kind. The first paragraph of the opener's docstring is the help text of
            `prep build KIND`.
        suffixes: Suffixes of the files that the source reads, so that SRC may be a pattern; default none.
        is_path: Whether SRC is the path of a file or folder, or a pattern of paths; default True.

    Example:
        >>> REGISTERED = Registered("mypackage.zoo:ZooSource", "mypackage.zoo:open_zoo", suffixes=(".zoo",))
        >>> REGISTERED.is_path
        True
    """

    source: str
    opener: str = ""
    suffixes: tuple[str, ...] = ()
    is_path: bool = True


_HERE = "decodeonce.prep.sources"
SOURCES = {
    "imagenet": Registered(f"{_HERE}.imagenet:ImagenetSplit", f"{_HERE}.imagenet:open_imagenet"),
    "imagenet-flat": Registered(f"{_HERE}.imagenet:ImagenetSplit"),
    "imagenet-tar": Registered(f"{_HERE}.imagenet:ImagenetSplit"),
    "imagenet-zip": Registered(f"{_HERE}.imagenet:ImagenetSplit"),
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


def find_registered(kind: str) -> Registered:
    """Return the registration of a kind, which may be that of another package; raises as `find_plugin`."""
    if kind in SOURCES:
        return SOURCES[kind]
    from decodeonce.prep.sources.plugins import find_plugin

    return find_plugin(kind)


def open_source(kind: str, root: Path, arguments: Json) -> Source:
    """Make the source that a plan names."""
    from decodeonce.store.manifest import WITH_BOXES, WITH_PAIRED

    if kind.endswith(WITH_BOXES):
        from decodeonce.prep.recipe import BoxRules
        from decodeonce.prep.sources.boxed import BoxedSource

        inner = open_source(kind.removesuffix(WITH_BOXES), root, arguments["source"])
        return BoxedSource(inner, Path(arguments["boxes"]), BoxRules(**arguments["rules"]))
    if kind.endswith(WITH_PAIRED):
        from decodeonce.prep.sources.paired import PairedSource

        own = {name: value for name, value in arguments.items() if name != "source"}
        return PairedSource(open_source(kind.removesuffix(WITH_PAIRED), root, arguments["source"]), **own)
    source: Source = _load(kind, find_registered(kind).source)(root, **arguments)
    return source


def find_opener(kind: str) -> Callable[..., Source]:
    """Return the function that opens SRC as a kind that has a command."""
    opener: Callable[..., Source] = _load(kind, find_registered(kind).opener)
    return opener


def _load(kind: str, path: str) -> Any:
    module, name = path.split(":")
    if kind in SOURCES:
        return getattr(import_module(module), name)
    from decodeonce.prep.sources.plugins import plugin_errors

    with plugin_errors(kind):
        return getattr(import_module(module), name)
