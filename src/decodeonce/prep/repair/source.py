"""Open the source of a store again, to read the images of damaged rows by name."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Undecodable
from decodeonce.prep.recipe import check_choice
from decodeonce.prep.sources import SOURCES, Source, find_opener
from decodeonce.prep.sources.base import WITH_BOXES
from decodeonce.store.manifest import Manifest

IMAGENET_NAME = re.compile(r"ILSVRC.*|n\d{8}\.tar")
MOST_NAMES = 1000


def reopen_source(
    manifest: Manifest, src: str, options: Mapping[str, Any] | None = None, *, follow_links: bool = False
) -> Source:
    """Open SRC as the source of a store, to find its images by name.

    Args:
        manifest: The store's manifest.
        src: The source of the build. For a list, it may be the folder that its paths start from.
        options: Arguments of the opener that the manifest lacks or that differ now; default None: none.
        follow_links: Whether links may lead out of SRC; default False.

    Raises:
        BuildError: If SRC is not such a source.
    """
    named = str(manifest.source.get("kind", "")).removesuffix(WITH_BOXES)
    # imagenet-tar is one of the forms that the opener of imagenet detects.
    openers = [kind for kind in (named, named.partition("-")[0]) if kind in SOURCES and SOURCES[kind].opener]
    # Selected or merged stores do not name the kinds of their inputs.
    kind = openers[0] if openers else recognise_kind(src)
    given: dict[str, Any] = {"classes": [cls.name for cls in manifest.classes]} if openers else {}
    if not SOURCES[kind].suffixes and not os.path.exists(src):  # otherwise it may be a pattern
        raise BuildError(f"{src}: no such file or folder; expected the source that the store was built from")
    opener = find_opener(kind)
    hints = get_type_hints(opener)
    # A manifest may come from anybody, and must not name a folder outside SRC: only `options` may be paths.
    paths = {name for name, hint in hints.items() if Path in (hint, *get_args(hint))}
    try:
        recorded = {name: value for name, value in manifest.source.get("options", {}).items() if name not in paths}
        given |= {**recorded, **(options or {}), "follow_links": follow_links}
        for name, value in given.items():
            if get_origin(hints.get(name)) is Literal:  # the command line checks choices, so openers need not
                check_choice(name, value, hints[name])
        return opener(src, **given)
    except (TypeError, AttributeError, ValueError) as error:  # options of another kind, or a damaged manifest
        raise BuildError(f"{src}: cannot be opened as {kind}: {error}; pass the flags of the build") from None


def read_images(source: Source, names: Collection[bytes], problems: dict[bytes, str]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (name, bytes) of everything that has one of the names. `problems` gets why others cannot be read.

    Raises Stopped for a temporary error.
    """
    try:
        for entry in source.find(names):
            try:
                if entry.problem:
                    problems[entry.name] = entry.problem
                else:
                    yield entry.name, source.read(entry)
            except Undecodable as error:
                problems[entry.name] = f"{os.fsdecode(source.holder(entry))}: {error}"
    except BuildError as error:  # a damaged archive: what was found before is of use
        problems.update({name: str(error) for name in names if name not in problems})


def recognise_kind(src: str) -> str:
    """Recognise the kind by names only. Class folders count as ImageNet, which is read in the same way."""
    names = _names(Path(src)) if os.path.isdir(src) else [os.path.basename(src)]
    if not any(map(IMAGENET_NAME.fullmatch, names)):
        for kind, registered in SOURCES.items():
            if registered.suffixes and any(name.rstrip("}").endswith(registered.suffixes) for name in names):
                return kind
    is_archive = src.endswith((".tar", ".zip"))
    return "list" if os.path.isfile(src) and not is_archive else "imagenet"


def _names(folder: Path) -> list[str]:
    """Return the first names in a folder and in its first subfolder."""
    with os.scandir(folder) as listing:
        items = sorted(islice(listing, MOST_NAMES), key=lambda item: os.fsencode(item.name))
    within = next((item.path for item in items if item.is_dir() and not item.name.startswith(".")), None)
    names = [item.name for item in items]
    if within is not None and not any(map(IMAGENET_NAME.fullmatch, names)):
        with os.scandir(within) as listing:
            names += [item.name for item in islice(listing, MOST_NAMES) if item.name.endswith(".parquet")]
    return names
