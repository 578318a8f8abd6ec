"""Make the rows that replace damaged ones, from their images with the store's recipe, or from another store.

If a row cannot be made, there is a reason for it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from decodeonce.errors import BuildError, StoreError
from decodeonce.formatting import quoted
from decodeonce.host import usable_cores
from decodeonce.prep import user_code
from decodeonce.prep.convert.rows import StoreRows, converted, shape_text
from decodeonce.prep.listing import Entry, LeftOut, Undecodable, name_bytes
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import Filter, Recipe
from decodeonce.prep.sources import SOURCES, find_opener, find_registered
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.files import is_file
from decodeonce.prep.sources.paired import open_with_paired
from decodeonce.prep.sources.plugins import plugins
from decodeonce.remote import as_path, scheme_of, source_text
from decodeonce.store.hashing import hexdigest
from decodeonce.store.layout import Paired, check_choice
from decodeonce.store.manifest import REBUILD, WITH_BOXES, WITH_PAIRED, Manifest, read_manifest
from decodeonce.store.table import Sample
from decodeonce.store.verify import ranges_text, row_ranges

COPY = f"restore it from a copy of the store (or pass the copy as --from), or {REBUILD}"
CHANGED = f"changed since the build; pass as --from a source that has the original, or {REBUILD}"
BOX = re.compile(r"\d{1,9}(,\d{1,9}){3}")
READ_AHEAD = 4  # images per thread that are read before they are decoded


class Reason(NamedTuple):
    """Why a row cannot be repaired, and the name of its image if that matters."""

    text: str
    name: str = ""


IsRight = Callable[[int, bytes], bool]  # takes a row number and pixels; whether they are those of the row
PixelsOrReason = bytes | Reason  # the pixels of a row, or why they cannot be made


def open_rows(manifest: Manifest, source: str, paired: Mapping[str, str]) -> FromStore | FromImages:
    """Open `source`, which is a finished store or what the store with this manifest was built from.

    Raises BuildError or StoreError if no row of the store can come from it.
    """
    _before_imports(manifest)
    source = source_text(source)
    path = as_path(source)
    if is_file(path / "store.json"):
        if scheme_of(source):
            raise BuildError(f"{source}: a remote store; run `prep stage {quoted(source)} COPY`, then pass --from COPY")
        return FromStore(manifest, path)
    return FromImages(manifest, source, paired)


def _before_imports(manifest: Manifest) -> None:
    """Let a command continue in a process of its own before SRC is opened: a URL starts threads, which do not fork."""
    if isinstance(of_map := manifest.recipe.get("map"), dict):
        user_code.before_import(str(of_map.get("function")))
    if (kind := manifest.source.get("kind")) in plugins():
        find_registered(kind)


class _Decoders(threading.local):
    """The decoder of each thread."""

    def __init__(self, recipe: Recipe, class_names: list[str]) -> None:
        from decodeonce.prep.pixels.decode import Decoder  # which requires that a decoder is installed

        self.own = Decoder(recipe, class_names)


class FromImages:
    """Rows made from the images in SRC by the store's recipe, with one thread per core."""

    def __init__(self, manifest: Manifest, src: str, paired: Mapping[str, str]) -> None:
        self._manifest, self._src = manifest, src
        self._source = reopen_source(manifest, src, paired)
        is_list = self._source.kind.removesuffix(WITH_PAIRED) == "list" and os.path.isfile(src)
        self._advice = "; pass as --from the folder that its paths are relative to, as --root" if is_list else ""
        recipe = {key: value for key, value in manifest.recipe.items() if key != "columns"}  # they change no pixel
        try:
            self._recipe = Recipe.from_facts(recipe)
        except (KeyError, TypeError, ValueError, AttributeError):
            sizes, why = recipe.get("resized_from"), "not written by `prep build`"
            if isinstance(sizes, list):
                why = f"resized from {shape_text(sizes)}"
            elif "unpacked_from" in recipe:
                why = f"unpacked from {recipe['unpacked_from']}"
            raise BuildError(f"{src}: the rows were {why}; pass as --from a store that has them") from None
        self._decoders = _Decoders(self._recipe, [cls.name for cls in manifest.classes])

    def rows(self, wanted: Sequence[Sample], is_right: IsRight) -> Iterator[tuple[Sample, PixelsOrReason]]:
        """Yield each wanted row once, in any order. Raises Stopped if an image cannot be read at the moment."""
        left: dict[bytes, list[Sample]] = {}
        for sample in wanted:
            left.setdefault(name_bytes(sample.source), []).append(sample)
        problems: dict[bytes, str] = {}
        images = self._read(left, problems)
        threads = 1 if self._recipe.map else usable_cores()  # a map is user code, which need not be thread-safe

        def decode(found: tuple[Sample, list[bytes]]) -> tuple[Sample, PixelsOrReason]:
            return found[0], self._decode(*found, is_right)

        with ThreadPoolExecutor(threads) as pool:
            while some := list(islice(images, READ_AHEAD * threads)):
                yield from pool.map(decode, some)
        for name, missing in left.items():
            why = problems.get(name) or f"not in {self._src}; pass what the store was built from"
            why += self._advice
            yield from ((sample, Reason(why, sample.source)) for sample in missing)

    def _read(
        self, left: dict[bytes, list[Sample]], problems: dict[bytes, str]
    ) -> Iterator[tuple[Sample, list[bytes]]]:
        """Yield the samples in `left`, which are by name, with what is read of them, and remove them there.

        `problems` gets why other images cannot be used, by name.
        """
        try:
            for entry in self._source.find(left.keys()):
                name = entry.name
                if entry.problem:
                    problems[name] = entry.problem
                    continue
                try:
                    data = self._source.read_checked(entry)
                except Undecodable as error:
                    problems[name] = f"{os.path.join(self._source.root, entry.text)}: {error}"
                    continue
                digest = hexdigest(data[0])
                fitting = [sample for sample in left[name] if sample.digest == digest]
                left[name] = [sample for sample in left[name] if sample.digest != digest]
                if not fitting:
                    problems[name] = CHANGED
                yield from ((sample, data) for sample in fitting)
        except BuildError as error:  # a damaged archive: what was found before is of use
            problems.update({name: str(error) for name in left if name not in problems})

    def _decode(self, sample: Sample, data: list[bytes], is_right: IsRight) -> PixelsOrReason:
        why = f"decodes to different pixels{', or its mask changed since the build' if data[1:] else ''}"
        try:
            pixels = self._decoders.own.row(data[0], _entry(sample), *data[1:]).pixels
            if is_right(sample.row, pixels):
                return pixels
        except (Undecodable, LeftOut) as error:
            why = f"cannot be decoded ({error})"
        return Reason(f"{why}; {versions_to_install(self._manifest) or COPY}", sample.source)


def reopen_source(manifest: Manifest, src: str, paired: Mapping[str, str]) -> Source:
    """Open SRC as the source of a store, to find its images by name. Their digests are checked, so links are followed.

    `paired` is the folder of each mask or second image by name. Raises BuildError if SRC is not such a source.
    """
    where = {Paired.parse(name).name: folder for name, folder in paired.items()}
    folders = {one.text: where[one.name] for one in manifest.paired if one.name in where}
    kind = str(manifest.source.get("kind")).removesuffix(WITH_BOXES).removesuffix(WITH_PAIRED)
    if kind == "store":
        done = "selected, sorted, shuffled or merged by `prep convert`, which does not record where they came from"
        raise BuildError(f"{src}: the rows were {done}; pass as --from a store that has them, or {REBUILD}")
    kind = kind.partition("-")[0] if kind in SOURCES else kind  # the opener of imagenet detects imagenet-tar
    registered = find_registered(kind)
    is_there = registered.suffixes or scheme_of(src) or os.path.exists(src)  # with suffixes it may be a pattern
    if registered.is_path and not is_there:
        raise BuildError(f"{src}: no such file or folder; expected the source that the store was built from")
    opener = find_opener(kind)
    hints = get_type_hints(opener)
    try:
        given = _recorded_arguments(manifest, hints)
        members: Any = given.pop("paired", {})
        if "paired" in hints:  # suffixes of the members of a tar; a manifest must not name folders
            folders = folders or members
        source = open_with_paired(opener, src, folders, **given, follow_links=True)
    except (TypeError, AttributeError, ValueError) as error:  # options of another kind, or a damaged manifest
        advice = f"pass as --from another store with these rows, or {REBUILD}"
        raise BuildError(f"{src}: cannot be opened as {kind}: {error}; {advice}") from None
    if source.paired != manifest.paired:
        flags = " ".join(f"--paired {one.name}=DIR" for one in manifest.paired) or "no --paired"
        raise BuildError(f"{src}: the store's images are paired with others; pass those of the build: {flags}")
    return source


def _recorded_arguments(manifest: Manifest, hints: Mapping[str, Any]) -> dict[str, object]:
    """Return the arguments of the opener that a store records; raise ValueError if a value is none of its choices."""
    # A manifest may come from anybody, and must not name a folder outside SRC.
    paths = {name for name, hint in hints.items() if Path in (hint, *get_args(hint))}
    given: dict[str, object] = {"classes": [cls.name for cls in manifest.classes]}
    given |= {name: value for name, value in manifest.source.get("options", {}).items() if name not in paths}
    if given.get("no_labels"):
        for name in ("classes", "label_suffix", "label_column"):  # listing found out that labels are ignored
            given.pop(name, None)
    for name, value in given.items():  # the command line checks choices, so openers need not
        if get_origin(hints.get(name)) is Literal:
            check_choice(name, value, hints[name])
    return given


def _entry(sample: Sample) -> Entry:
    """Return what a row was made from."""
    entry = Entry(name_bytes(sample.source), sample.label, 0, 0)
    if not BOX.fullmatch(sample.box) or sample.width < 1 or sample.height < 1:
        return entry
    left, top, right, bottom = map(int, sample.box.split(","))
    width, height = sample.width, sample.height
    return replace(entry, numbers={"box": [left / width, top / height, right / width, bottom / height]})


class FromStore:
    """Rows of another finished store with the same images and boxes, in the size and pixels of the store to repair."""

    def __init__(self, manifest: Manifest, path: Path) -> None:
        self._path = path
        self._rows = StoreRows(path, read_manifest(path / "store.json").digest)
        (height, width, _), theirs = manifest.shape, self._rows.manifest.shape
        self._recipe: Recipe | None = None
        if manifest.paired != self._rows.manifest.paired:
            expected = ", ".join(one.text for one in manifest.paired) or "no paired images"
            raise BuildError(f"{path}: expected a store with {expected}; pass another one, or the images")
        if (manifest.shape, manifest.pixels) == (theirs, self._rows.manifest.pixels):
            return
        sizes, filter_ = manifest.recipe.get("resized_from"), manifest.recipe.get("resize_filter", "")
        resizes = sizes == list(theirs[:2]) and theirs[2] == 3 and filter_ in get_args(Filter)
        if manifest.shape != theirs and not resizes:
            expected = f"{shape_text(manifest.shape)}{f' or {shape_text(sizes)}' if isinstance(sizes, list) else ''}"
            raise BuildError(f"{path}: rows are {shape_text(theirs)}, expected {expected}; pass a store with such rows")
        filters = {"filter": filter_} if resizes else {}
        self._recipe = Recipe(height=height, width=width, pixels=manifest.pixels, **filters)

    def rows(self, wanted: Sequence[Sample], is_right: IsRight) -> Iterator[tuple[Sample, PixelsOrReason]]:
        """Yield each wanted row once, in any order."""
        places: dict[tuple[str, str, str], list[int]] = {_key(sample): [] for sample in wanted}
        for stored in self._rows.store.samples:
            if _key(stored) in places and stored.row in self._rows.store.rows:
                places[_key(stored)].append(stored.row)
        with closing(self._rows):
            for sample in wanted:
                yield sample, self._row(sample, places[_key(sample)], is_right)

    def _row(self, sample: Sample, places: list[int], is_right: IsRight) -> PixelsOrReason:
        why = f"not in {self._path}; pass as --from a store that has it, or the images"
        for place in places:
            try:
                pixels = self._rows.read(place)
            except StoreError:
                why = f"also damaged in {self._path}"
                continue
            if self._recipe:
                pixels = converted(pixels, self._rows.manifest, self._recipe)
            if is_right(sample.row, pixels):
                return pixels
            why = f"has different pixels in {self._path}; pass as --from a copy of the store to repair"
        return Reason(why, sample.source)


def _key(sample: Sample) -> tuple[str, str, str]:
    return sample.source, sample.box, sample.digest


def row_sentences(reasons: Mapping[int, Reason]) -> Iterator[str]:
    """Yield a sentence for each reason, with its rows and the name of the first image. The rows must be sorted."""
    by_text: dict[str, list[int]] = {}
    for row, reason in reasons.items():
        by_text.setdefault(reason.text, []).append(row)
    for text, rows in by_text.items():
        names = list(dict.fromkeys(reasons[row].name for row in rows if reasons[row].name))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{ranges_text(row_ranges(rows))}: {f'{names[0]}{more}: ' if names else ''}{text}"


def versions_to_install(manifest: Manifest) -> str:
    """Return which library versions to install to decode as the build did; empty if they are installed."""
    written = manifest.recipe.get("decoders")
    if not isinstance(written, dict):
        return ""
    installed = decoder_versions(manifest.container)
    missing = [f"{name} {version}" for name, version in written.items() if installed.get(name) != version]
    instead = [f"{name} {version}" for name, version in installed.items() if written.get(name) != version]
    return f"install {', '.join(missing)}, as used by the build (installed: {', '.join(instead)})" if missing else ""
