"""The kinds of input that a build can read. A plan names a source by kind, root and facts.

A package that declares the entry point `KIND = "module:NAME"` in the group `decodeonce.sources`, where NAME is a
`Registered`, adds a kind. It is imported only when its kind is used or when a help lists all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from decodeonce.errors import BuildError
from decodeonce.store.layout import Json

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from decodeonce.prep.sources.base import Source


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
PLUGINS = "decodeonce.sources"  # the group of entry points


@cache
def plugins() -> dict[str, list[EntryPoint]]:
    """Return the entry points of other packages by kind, which should be one each.

    Finding them takes milliseconds, and imports no package.
    """
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=PLUGINS):
        if point.name not in SOURCES:
            found.setdefault(point.name, []).append(point)
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


@contextmanager
def plugin_errors(kind: str) -> Iterator[None]:
    """Turn any error of a package that adds a kind into BuildError, so that it affects only this kind."""
    try:
        yield
    except (Exception, SystemExit) as error:  # code of another package may raise anything
        if kind not in plugins() or isinstance(error, BuildError):
            raise
        name, what = _package(plugins()[kind][0]), f"{type(error).__name__}: {error}"
        problem = f"the package {name}, which adds this kind of source, cannot be used: {what}"
        raise BuildError(f"{kind}: {problem}; update or uninstall it") from error


def find_registered(kind: str) -> Registered:
    """Return the registration of a kind, which may be that of another package.

    Raises:
        BuildError: If no package adds this kind, or the package that does cannot be imported.
    """
    if kind in SOURCES:
        return SOURCES[kind]
    if kind not in plugins():
        raise BuildError(f"no package adds the kind of source {kind!r}; install the one that was used for the build")
    point, *others = plugins()[kind]
    if others:
        places = sorted(f"{_package(one)} ({one.value})" for one in (point, *others))
        raise BuildError(f"{kind}: several packages add this kind: {', '.join(places)}; uninstall all but one")
    with plugin_errors(kind):
        found = point.load()
        if not isinstance(found, Registered):
            raise TypeError(f"{point.value} is a {type(found).__name__}, expected a Registered")
        return found


def open_source(kind: str, root: Path, facts: Json) -> Source:
    """Make the source that a plan names."""
    from decodeonce.prep.sources.base import WITH_BOXES, WITH_PAIRED

    if kind.endswith(WITH_BOXES):
        from decodeonce.prep.sources.boxed import BoxedSource

        return BoxedSource.from_facts(open_source(kind.removesuffix(WITH_BOXES), root, facts["source"]), facts)
    if kind.endswith(WITH_PAIRED):
        from decodeonce.prep.sources.paired import PairedSource

        own = {name: value for name, value in facts.items() if name != "source"}
        return PairedSource(open_source(kind.removesuffix(WITH_PAIRED), root, facts["source"]), **own)
    source: Source = _load(kind, find_registered(kind).source)(root, **facts)
    return source


def find_opener(kind: str) -> Callable[..., Source]:
    """Return the function that opens SRC as a kind that has a command."""
    opener: Callable[..., Source] = _load(kind, find_registered(kind).opener)
    return opener


def _load(kind: str, path: str) -> Any:
    with plugin_errors(kind):
        module, name = path.split(":")
        return getattr(import_module(module), name)
