"""Make the rows that replace damaged ones, from their images with the store's recipe, or from another store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from queue import SimpleQueue
from typing import Any, get_args

from decodeonce.errors import BuildError, StoreError
from decodeonce.host import usable_cores
from decodeonce.prep.convert.merge import shape_text
from decodeonce.prep.convert.resize import StoredRowMaker
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import Entry, LeftOut, Undecodable, name_bytes
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.recipe import Filter, Recipe
from decodeonce.prep.repair.reasons import COPY, Reason, versions_to_install
from decodeonce.prep.repair.source import read_images, reopen_source
from decodeonce.store.hashing import hexdigest
from decodeonce.store.manifest import REBUILD, Manifest, read_manifest
from decodeonce.store.table import Sample

BOX = re.compile(r"\d{1,9}(,\d{1,9}){3}")
# A scaled decode cuts a box at its exact edges. They are less than a pixel inside those of samples.tsv, which are whole
# pixels.
ALMOST_ONE = 1 - 2e-6
CHANGED = f"changed since the build; pass as --from a source that has the original, or {REBUILD}"
READ_AHEAD = 4  # images per thread that are read before they are decoded

IsRight = Callable[[int, bytes], bool]  # takes a row number and pixels; whether they are those of the row
Pixels = bytes | Reason  # the pixels of a row, or why they cannot be made


def open_rows(manifest: Manifest, source: str, options: Mapping[str, object]) -> StoredRows | ImageRows:
    """Open `source`, which is a finished store or what the store with this manifest was built from.

    Raises BuildError or StoreError if no row of the store can come from it.
    """
    if os.path.isfile(os.path.join(source, "store.json")):
        return StoredRows(manifest, Path(source))
    return ImageRows(manifest, source, options)


class ImageRows:
    """Rows made from the images in SRC by the store's recipe, with one thread per core."""

    def __init__(self, manifest: Manifest, src: str, options: Mapping[str, object]) -> None:
        self._manifest, self._src = manifest, src
        self._source = reopen_source(manifest, src, options, follow_links=True)  # digests are checked
        self._recipes = recipes_of(manifest.recipe)
        if not self._recipes:
            sizes = manifest.recipe.get("resized_from")
            why = f"resized from {shape_text(sizes)}" if isinstance(sizes, list) else "not written by `prep build`"
            raise BuildError(f"{src}: the rows were {why}; pass as --from a store that has them")
        mapped = any(recipe.map for recipe in self._recipes)
        self._threads = 1 if mapped else usable_cores()  # a map is code of the user, which need not be thread-safe
        self._decoders: SimpleQueue[list[Decoder]] = SimpleQueue()
        names = [cls.name for cls in manifest.classes]
        for _ in range(self._threads):
            self._decoders.put([Decoder(recipe, names) for recipe in self._recipes])

    def rows(self, wanted: Sequence[Sample], is_right: IsRight) -> Iterator[tuple[Sample, Pixels]]:
        """Yield each wanted row once, in any order. Raises Stopped if an image cannot be read at the moment."""
        left: dict[bytes, list[Sample]] = {}
        for sample in wanted:
            left.setdefault(name_bytes(sample.source), []).append(sample)
        problems: dict[bytes, str] = {}

        def read() -> Iterator[tuple[Sample, bytes]]:
            for name, data in read_images(self._source, left.keys(), problems):
                digest = hexdigest(data)
                fitting = [sample for sample in left[name] if sample.digest == digest]
                left[name] = [sample for sample in left[name] if sample.digest != digest]
                if not fitting:
                    problems[name] = CHANGED
                yield from ((sample, data) for sample in fitting)

        def decode(found: tuple[Sample, bytes]) -> tuple[Sample, Pixels]:
            decoders = self._decoders.get()
            try:
                return found[0], self._decode(decoders, *found, is_right)
            finally:
                self._decoders.put(decoders)

        images = read()
        with ThreadPoolExecutor(self._threads) as pool:
            while some := list(islice(images, READ_AHEAD * self._threads)):
                yield from pool.map(decode, some)
        for name, missing in left.items():
            why = problems.get(name) or f"not in {self._src}; pass what the store was built from"
            yield from ((sample, Reason(why, sample.source)) for sample in missing)

    def _decode(self, decoders: list[Decoder], sample: Sample, data: bytes, is_right: IsRight) -> Pixels:
        why = "decodes to different pixels"
        for decoder, recipe in zip(decoders, self._recipes, strict=True):
            for entry in _entries(sample, recipe):
                try:
                    pixels = decoder.row(data, entry).pixels
                except (Undecodable, LeftOut) as error:
                    why = f"cannot be decoded ({error})"
                    continue
                if is_right(sample.row, pixels):
                    return pixels
        return Reason(f"{why}; {versions_to_install(self._manifest) or COPY}", sample.source)


def recipes_of(facts: dict[str, Any]) -> list[Recipe]:
    """Return the recipes that made a store's rows: several for a merged store, none if rows were resized."""
    if isinstance(joined := facts.get("joined"), list) and "resized_from" not in facts:
        return list(dict.fromkeys(recipe for one in joined for recipe in recipes_of(one)))
    try:
        others = ("selected", "columns")  # these change no pixel
        return [Recipe.from_facts({key: value for key, value in facts.items() if key not in others})]
    except (KeyError, TypeError, ValueError):  # rows were resized, or another writer made the store
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
    edges = list(map(int, sample.box.split(",")))
    inward = (ALMOST_ONE, ALMOST_ONE, -ALMOST_ONE, -ALMOST_ONE)
    for step in product((0, 1), repeat=4) if recipe.scaled_decode else [(0, 0, 0, 0)]:
        left, top, right, bottom = (edge + by * share for edge, by, share in zip(edges, step, inward, strict=True))
        width, height = sample.width, sample.height
        yield replace(entry, planned={"box": [left / width, top / height, right / width, bottom / height]})


class StoredRows:
    """Rows of another finished store with the same images and boxes, resized if the recipe says so."""

    def __init__(self, manifest: Manifest, path: Path) -> None:
        self._path = path
        self._rows = StoreRows(path, read_manifest(path / "store.json").digest)
        self._maker: StoredRowMaker | None = None
        (height, width, _), theirs = manifest.shape, self._rows.manifest.shape
        if manifest.shape == theirs:
            return
        sizes, filter_ = manifest.recipe.get("resized_from"), manifest.recipe.get("resize_filter", "")
        if sizes != list(theirs[:2]) or theirs[2] != 3 or filter_ not in get_args(Filter):
            expected = f"{shape_text(manifest.shape)}{f' or {shape_text(sizes)}' if isinstance(sizes, list) else ''}"
            raise BuildError(f"{path}: rows are {shape_text(theirs)}, expected {expected}; pass a store with such rows")
        self._maker = StoredRowMaker([self._rows], Recipe(height=height, width=width, filter=filter_))

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
            if self._maker is not None:
                pixels = self._maker.row(pixels, Entry(name_bytes(sample.source), 0, 0, 0, place=place)).pixels
            if is_right(sample.row, pixels):
                return pixels
            why = f"has different pixels in {self._path}; pass as --from a copy of the store to repair"
        return Reason(why, sample.source)


def _key(sample: Sample) -> tuple[str, str, str]:
    return sample.source, sample.box, sample.digest
