"""Rows to put in the place of damaged ones: from their pictures, by the store's own recipe, or from another store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
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
from decodeonce.prep.repair.images import ImageSearch, roots_of
from decodeonce.prep.repair.reasons import COPY, Reason, other_versions
from decodeonce.store.hashing import hexdigest
from decodeonce.store.manifest import REBUILD, Manifest, read_manifest
from decodeonce.store.table import Sample

BOX = re.compile(r"\d{1,9}(,\d{1,9}){3}")
# A scaled decode cuts a box at its exact edges, of which samples.tsv keeps whole pixels.
ALMOST_ONE = 1 - 2e-6
READ_AHEAD = 4  # pictures that are read for each thread before they are decoded

IsRight = Callable[[int, bytes], bool]  # whether these are the pixels of the row with this number
Pixels = bytes | Reason  # those of a row, or why it cannot be had


def open_rows(manifest: Manifest, source: str) -> StoredRows | ImageRows:
    """Open what `source` is: a finished store, or what the store of this manifest was built from.

    Raises BuildError or StoreError if no row of the store can come from there.
    """
    if os.path.isfile(os.path.join(source, "store.json")):
        return StoredRows(manifest, Path(source))
    return ImageRows(manifest, source)


class ImageRows:
    """Rows from the pictures below `source`, decoded by the store's recipe with a thread for each core."""

    def __init__(self, manifest: Manifest, source: str) -> None:
        self._manifest, self._source = manifest, source
        self._roots = roots_of(str(manifest.source.get("kind", "")), source)
        self._recipes = recipes_of(manifest.recipe)
        if not self._recipes:
            sizes = manifest.recipe.get("resized_from")
            why = f"resized from {shape_text(sizes)}" if isinstance(sizes, list) else "not written by `prep build`"
            raise BuildError(f"{source}: the rows were {why}; give as --from a store that has them")
        mapped = any(recipe.map for recipe in self._recipes)
        self._threads = 1 if mapped else usable_cores()  # a map is the user's code: call it from one thread
        self._decoders: SimpleQueue[list[Decoder]] = SimpleQueue()
        names = [cls.name for cls in manifest.classes]
        for _ in range(self._threads):
            self._decoders.put([Decoder(recipe, names) for recipe in self._recipes])

    def rows(self, wanted: Sequence[Sample], is_right: IsRight) -> Iterator[tuple[Sample, Pixels]]:
        """Yield each wanted row once, in any order. Raises Stopped."""
        left: dict[bytes, list[Sample]] = {}
        for sample in wanted:
            left.setdefault(name_bytes(sample.source), []).append(sample)
        search, changed = ImageSearch(self._roots, left), set[bytes]()

        def read() -> Iterator[tuple[Sample, bytes]]:
            for name, data in search.find():
                digest = hexdigest(data)
                fitting = [sample for sample in left[name] if sample.digest == digest]
                left[name] = [sample for sample in left[name] if sample.digest != digest]
                if not fitting:
                    changed.add(name)
                if not left[name]:
                    search.names.discard(name)
                yield from ((sample, data) for sample in fitting)

        def decode(found: tuple[Sample, bytes]) -> tuple[Sample, Pixels]:
            decoders = self._decoders.get()
            try:
                return found[0], self._decode(decoders, *found, is_right)
            finally:
                self._decoders.put(decoders)

        pictures = read()
        with ThreadPoolExecutor(self._threads) as pool:
            while some := list(islice(pictures, READ_AHEAD * self._threads)):
                yield from pool.map(decode, some)
        for name in search.names:
            if name in changed:
                why = f"changed since the build; give a --from that has the old one, or {REBUILD}"
            else:
                why = search.problems.get(name) or f"not in {self._source}; give what the store was built from"
            yield from ((sample, Reason(why, sample.source)) for sample in left[name])

    def _decode(self, decoders: list[Decoder], sample: Sample, data: bytes, is_right: IsRight) -> Pixels:
        why = "decodes to other bytes"
        for decoder, recipe in zip(decoders, self._recipes, strict=True):
            for entry in _entries(sample, recipe):
                try:
                    pixels = decoder.row(data, entry).pixels
                except (Undecodable, LeftOut) as error:
                    why = f"not decoded ({error})"
                    continue
                if is_right(sample.row, pixels):
                    return pixels
        return Reason(f"{why}; {other_versions(self._manifest) or COPY}", sample.source)


def recipes_of(facts: dict[str, Any]) -> list[Recipe]:
    """The recipes by which pictures became a store's rows: several in joined stores, none if rows were resized."""
    if isinstance(joined := facts.get("joined"), list) and "resized_from" not in facts:
        return list(dict.fromkeys(recipe for one in joined for recipe in recipes_of(one)))
    try:
        others = ("selected", "columns")  # which change no pixel
        return [Recipe.from_facts({key: value for key, value in facts.items() if key not in others})]
    except (KeyError, TypeError, ValueError):  # resized, or another writer's
        return []


def _entries(sample: Sample, recipe: Recipe) -> Iterator[Entry]:
    """What a row may have been made of, likeliest first: several only if a box was cut from a scaled picture."""
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
        yield replace(entry, boxes=((left / width, top / height, right / width, bottom / height),))


class StoredRows:
    """Rows of another finished store: those of the same pictures and boxes, resized if the recipe says so."""

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
            raise BuildError(f"{path}: has rows of {shape_text(theirs)}, expected {expected}; give a store of those")
        self._maker = StoredRowMaker([self._rows], Recipe(height=height, width=width, filter=filter_))

    def rows(self, wanted: Sequence[Sample], is_right: IsRight) -> Iterator[tuple[Sample, Pixels]]:
        """Yield each wanted row once, in any order."""
        places: dict[tuple[str, str, str], list[int]] = {_key(sample): [] for sample in wanted}
        for there in self._rows.store.samples:
            if _key(there) in places and there.row in self._rows.store.rows:
                places[_key(there)].append(there.row)
        with closing(self._rows):
            for sample in wanted:
                yield sample, self._row(sample, places[_key(sample)], is_right)

    def _row(self, sample: Sample, places: list[int], is_right: IsRight) -> Pixels:
        why = f"not in {self._path}; give a store that has it, or the pictures, as --from"
        for place in places:
            try:
                pixels = self._rows.read(place)
            except StoreError:
                why = f"damaged in {self._path}, too"
                continue
            if self._maker is not None:
                pixels = self._maker.row(pixels, Entry(name_bytes(sample.source), 0, 0, 0, place=place)).pixels
            if is_right(sample.row, pixels):
                return pixels
            why = f"has other pixels in {self._path}; give a copy of the store itself as --from"
        return Reason(why, sample.source)


def _key(sample: Sample) -> tuple[str, str, str]:
    return sample.source, sample.box, sample.digest
