"""Kinds of sources that other packages add.

A package that declares the entry point `KIND = "module:NAME"` in the group `decodeonce.sources`, where NAME is a
`Registered`, adds a kind. It is imported only when its kind is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from decodeonce.errors import BuildError, DecodeonceError
from decodeonce.prep import user_code
from decodeonce.prep.sources import SOURCES, Registered

PLUGINS = "decodeonce.sources"  # the group of entry points


@cache
def plugins() -> dict[str, list[EntryPoint]]:
    """Return the entry points of other packages by kind, which should be one each.

    Finding them takes milliseconds, and imports no package.
    """
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=PLUGINS):
        if point.name not in SOURCES:
            found.setdefault(point.name, []).append(point)
    return found


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return point.dist.name if point.dist else point.value


@contextmanager
def plugin_errors(kind: str) -> Iterator[None]:
    """Turn any error of a package that adds a kind into BuildError, so that it affects only this kind."""
    if kind in plugins():
        user_code.before_import(plugins()[kind][0].value)
    try:
        yield
    except (Exception, SystemExit) as error:  # code of another package may raise anything
        if kind not in plugins() or isinstance(error, DecodeonceError):
            raise
        name, what = package_of(plugins()[kind][0]), f"{type(error).__name__}: {error}"
        problem = f"the package {name}, which adds this kind of source, cannot be used: {what}"
        raise BuildError(f"{kind}: {problem}; update or uninstall it") from error


def find_plugin(kind: str) -> Registered:
    """Return the registration of a kind that another package adds.

    Raises:
        BuildError: If no package adds this kind, or the package that does cannot be imported.
    """
    if kind not in plugins():
        raise BuildError(f"no package adds the kind of source {kind!r}; install the one that was used for the build")
    point, *others = plugins()[kind]
    if others:
        places = sorted(f"{package_of(one)} ({one.value})" for one in (point, *others))
        raise BuildError(f"{kind}: several packages add this kind: {', '.join(places)}; uninstall all but one")
    with plugin_errors(kind):
        found = point.load()
        if not isinstance(found, Registered):
            raise TypeError(f"{point.value} is a {type(found).__name__}, expected a Registered")
        return found
