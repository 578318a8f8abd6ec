"""Make the rows that replace damaged ones, from their images with the store's recipe, or from another store."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from decodeonce.errors import BuildError, StoreError
from decodeonce.host import usable_cores
from decodeonce.prep.convert.rows import StoreRows, resized, shape_text
from decodeonce.prep.entry import Entry, LeftOut, Undecodable, name_bytes
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.recipe import Filter, Recipe, check_choice
from decodeonce.prep.repair.reasons import COPY, Reason, versions_to_install
from decodeonce.prep.sources import KINDS, SOURCES, find_opener, find_registered, has_opener
from decodeonce.prep.sources.base import WITH_BOXES, WITH_PAIRED, Source
from decodeonce.prep.sources.paired import open_with_paired
from decodeonce.remote import as_path, is_url, source_text
from decodeonce.store.hashing import hexdigest
from decodeonce.store.layout import Json, Paired
from decodeonce.store.manifest import REBUILD, Manifest, read_manifest
from decodeonce.store.table import Sample

CHANGED = f"changed since the build; pass as --from a source that has the original, or {REBUILD}"
BOX = re.compile(r"\d{1,9}(,\d{1,9}){3}")
# A scaled decode cuts a box at its exact edges. They are less than a pixel inside those of samples.tsv, which are whole
# pixels.
ALMOST_ONE = 1 - 2e-6
READ_AHEAD = 4  # images per thread that are read before they are decoded

IsRight = Callable[[int, bytes], bool]  # takes a row number and pixels; whether they are those of the row
Pixels = bytes | Reason  # the pixels of a row, or why they cannot be made


def open_rows(manifest: Manifest, source: str, options: Mapping[str, object]) -> StoredRows | ImageRows:
    """Open `source`, which is a finished store or what the store with this manifest was built from.

    Raises BuildError or StoreError if no row of the store can come from it.
    """
    source = source_text(source)
    if is_url(source) and as_path(f"{source}/store.json").is_file():
        raise BuildError(f"{source}: a remote store; run `prep stage {source} COPY`, then pass --from COPY")
    if os.path.isfile(os.path.join(source, "store.json")):
        return StoredRows(manifest, Path(source))
    return ImageRows(manifest, source, options)


class _Decoders(threading.local):
    """The decoders of a thread, one per recipe."""

    def __init__(self, recipes: list[Recipe], class_names: list[str]) -> None:
        self.each = [Decoder(recipe, class_names) for recipe in recipes]


class ImageRows:
    """Rows made from the images in SRC by the store's recipe, with one thread per core."""

    def __init__(self, manifest: Manifest, src: str, options: Mapping[str, object]) -> None:
        self._manifest, self._src = manifest, src
        self._source = reopen_source(manifest, src, options)
        self._recipes = recipes_of(manifest.recipe)
        if not self._recipes:
            sizes = manifest.recipe.get("resized_from")
            why = f"resized from {shape_text(sizes)}" if isinstance(sizes, list) else "not written by `prep build`"
            raise BuildError(f"{src}: the rows were {why}; pass as --from a store that has them")
        self._decoders = _Decoders(self._recipes, [cls.name for cls in manifest.classes])

    def rows(self, wanted: Sequence[Sample], is_right: IsRight) -> Iterator[tuple[Sample, Pixels]]:
        """Yield each wanted row once, in any order. Raises Stopped if an image cannot be read at the moment."""
        left: dict[bytes, list[Sample]] = {}
        for sample in wanted:
            left.setdefault(name_bytes(sample.source), []).append(sample)
        problems: dict[bytes, str] = {}
        images = self._read(left, problems)
        mapped = any(recipe.map for recipe in self._recipes)
        threads = 1 if mapped else usable_cores()  # a map is code of the user, which need not be thread-safe

        def decode(found: tuple[Sample, list[bytes]]) -> tuple[Sample, Pixels]:
            return found[0], self._decode(*found, is_right)

        with ThreadPoolExecutor(threads) as pool:
            while some := list(islice(images, READ_AHEAD * threads)):
                yield from pool.map(decode, some)
        for name, missing in left.items():
            why = problems.get(name) or f"not in {self._src}; pass what the store was built from"
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
                    data = self._source.read_all(entry)
                except Undecodable as error:
                    problems[name] = f"{os.fsdecode(self._source.holder(entry))}: {error}"
                    continue
                digest = hexdigest(data[0])
                fitting = [sample for sample in left[name] if sample.digest == digest]
                left[name] = [sample for sample in left[name] if sample.digest != digest]
                if not fitting:
                    problems[name] = CHANGED
                yield from ((sample, data) for sample in fitting)
        except BuildError as error:  # a damaged archive: what was found before is of use
            problems.update({name: str(error) for name in left if name not in problems})

    def _decode(self, sample: Sample, data: list[bytes], is_right: IsRight) -> Pixels:
        why = f"decodes to different pixels{', or its mask changed since the build' if data[1:] else ''}"
        for decoder, recipe in zip(self._decoders.each, self._recipes, strict=True):
            for entry in _entries(sample, recipe):
                try:
                    pixels = decoder.row(data[0], entry, *data[1:]).pixels
                except (Undecodable, LeftOut) as error:
                    why = f"cannot be decoded ({error})"
                    continue
                if is_right(sample.row, pixels):
                    return pixels
        return Reason(f"{why}; {versions_to_install(self._manifest) or COPY}", sample.source)


def reopen_source(manifest: Manifest, src: str, options: Mapping[str, object]) -> Source:
    """Open SRC as the source of a store, to find its images by name. Their digests are checked, so links are followed.

    `options` are arguments of the opener that the manifest lacks or that differ now. In it, "kind" names another
    opener, and "paired" is the folder of each mask or second image by name. Raises BuildError if SRC is not such a
    source.
    """
    options = dict(options)
    asked: Any = options.pop("paired", {})
    where = {Paired.parse(name).name: folder for name, folder in asked.items()}
    folders = {one.text: where[one.name] for one in manifest.paired if one.name in where}
    recorded = str(manifest.source.get("kind")).removesuffix(WITH_BOXES).removesuffix(WITH_PAIRED)
    # imagenet-tar is one of the forms that the opener of imagenet detects.
    openers = [kind for kind in (recorded, recorded.partition("-")[0]) if has_opener(kind)]
    # Selected and merged stores do not name the kinds of their inputs.
    kind = openers[0] if openers else "imagenet" if recorded in ("None", *SOURCES) else recorded
    if "kind" in options and not has_opener(kind := str(options["kind"])):
        raise BuildError(f"kind={kind}: no such kind of source, expected one of {', '.join(KINDS)}")
    given: dict[str, object] = {"classes": [cls.name for cls in manifest.classes]} if openers else {}
    registered = find_registered(kind)
    is_there = registered.suffixes or is_url(src) or os.path.exists(src)  # with suffixes it may be a pattern
    if registered.is_path and not is_there:
        raise BuildError(f"{src}: no such file or folder; expected the source that the store was built from")
    opener = find_opener(kind)
    hints = get_type_hints(opener)
    # A manifest may come from anybody, and must not name a folder outside SRC: only `options` may be paths.
    paths = {name for name, hint in hints.items() if Path in (hint, *get_args(hint))}
    try:
        if kind in openers:  # the options are arguments of its opener
            given |= {name: value for name, value in manifest.source.get("options", {}).items() if name not in paths}
        given |= {name: value for name, value in options.items() if name != "kind"}
        if given.get("no_labels"):
            for name in ("classes", "label_suffix", "label_column"):  # listing found out that labels are ignored
                given.pop(name, None)
        _check_choices(given, hints)
        members: Any = given.pop("paired", {})
        if "paired" in hints:  # suffixes of the members of a tar; a manifest must not name folders
            folders = folders or members
        source = open_with_paired(opener, src, folders, **given, follow_links=True)
    except (TypeError, AttributeError, ValueError) as error:  # options of another kind, or a damaged manifest
        raise BuildError(f"{src}: cannot be opened as {kind}: {error}; pass the flags of the build") from None
    if source.paired != manifest.paired:
        flags = " ".join(f"--paired {one.name}=DIR" for one in manifest.paired) or "no --paired"
        raise BuildError(f"{src}: the store's images are paired with others; pass those of the build: {flags}")
    return source


def _check_choices(given: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Raise ValueError if a value is none of its choices. The command line checks them, so openers need not."""
    for name, value in given.items():
        if get_origin(hints.get(name)) is Literal:
            check_choice(name, value, hints[name])


def recipes_of(facts: Json) -> list[Recipe]:
    """Return the recipes that made a store's rows: several for a merged store, none if rows were resized."""
    if isinstance(joined := facts.get("joined"), list) and "resized_from" not in facts:
        return list(dict.fromkeys(recipe for one in joined for recipe in recipes_of(one)))
    try:
        others = ("selected", "columns")  # these change no pixel
        return [Recipe.from_facts({key: value for key, value in facts.items() if key not in others})]
    except (KeyError, TypeError, ValueError, AttributeError):  # rows were resized, or another writer made the store
        return []


def _entries(sample: Sample, recipe: Recipe) -> Iterator[Entry]:
    """Yield what a row may have been made from, likeliest first.

    There are several only if a box was cut from a scaled image, because the exact edges of the box are not recorded.
    """
    entry = Entry(name_bytes(sample.source), sample.label, 0, 0)
    if not sample.box:
        yield entry
    if not BOX.fullmatch(sample.box) or sample.width < 1 or sample.height < 1:
        return
    left, top, right, bottom = map(int, sample.box.split(","))
    width, height = sample.width, sample.height
    for x0, y0, x1, y1 in product((0, ALMOST_ONE), repeat=4) if recipe.scaled_decode else [(0, 0, 0, 0)]:
        box = [(left + x0) / width, (top + y0) / height, (right - x1) / width, (bottom - y1) / height]
        yield replace(entry, planned={"box": box})


class StoredRows:
    """Rows of another finished store with the same images and boxes, resized if the recipe says so."""

    def __init__(self, manifest: Manifest, path: Path) -> None:
        self._path = path
        self._rows = StoreRows(path, read_manifest(path / "store.json").digest)
        (height, width, _), theirs = manifest.shape, self._rows.manifest.shape
        self._recipe: Recipe | None = None
        if manifest.paired != self._rows.manifest.paired:
            expected = ", ".join(one.text for one in manifest.paired) or "no paired images"
            raise BuildError(f"{path}: expected a store with {expected}; pass another one, or the images")
        if manifest.shape == theirs:
            return
        sizes, filter_ = manifest.recipe.get("resized_from"), manifest.recipe.get("resize_filter", "")
        if sizes != list(theirs[:2]) or theirs[2] != 3 or filter_ not in get_args(Filter):
            expected = f"{shape_text(manifest.shape)}{f' or {shape_text(sizes)}' if isinstance(sizes, list) else ''}"
            raise BuildError(f"{path}: rows are {shape_text(theirs)}, expected {expected}; pass a store with such rows")
        self._recipe = Recipe(height=height, width=width, filter=filter_)

    def rows(self, wanted: Sequence[Sample], is_right: IsRight) -> Iterator[tuple[Sample, Pixels]]:
        """Yield each wanted row once, in any order."""
        places: dict[tuple[str, str, str], list[int]] = {_key(sample): [] for sample in wanted}
        for stored in self._rows.store.samples:
            if _key(stored) in places and stored.row in self._rows.store.rows:
                places[_key(stored)].append(stored.row)
        with closing(self._rows):
            for sample in wanted:
                yield sample, self._row(sample, places[_key(sample)], is_right)

    def _row(self, sample: Sample, places: list[int], is_right: IsRight) -> Pixels:
        why = f"not in {self._path}; pass as --from a store that has it, or the images"
        for place in places:
            try:
                pixels = self._rows.read(place)
            except StoreError:
                why = f"also damaged in {self._path}"
                continue
            if self._recipe:
                pixels = resized(pixels, self._rows.manifest, self._recipe)
            if is_right(sample.row, pixels):
                return pixels
            why = f"has different pixels in {self._path}; pass as --from a copy of the store to repair"
        return Reason(why, sample.source)


def _key(sample: Sample) -> tuple[str, str, str]:
    return sample.source, sample.box, sample.digest
