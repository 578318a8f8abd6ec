"""Rows made again: from their pictures, by the store's own recipe, or from another store that has them."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.host import usable_cores
from decodeonce.prep.convert.merge import shape_text
from decodeonce.prep.convert.resize import StoredRowMaker
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import Box, Entry, LeftOut, Row, Undecodable, name_bytes
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.recipe import FILTERS, Recipe
from decodeonce.prep.repair.pictures import Wanted, find_pictures, roots_of
from decodeonce.prep.repair.reasons import Reason
from decodeonce.prep.repair.small_files import COPY
from decodeonce.store.hashing import hexdigest
from decodeonce.store.manifest import REBUILD, Manifest, read_manifest
from decodeonce.store.table import Sample

BOX = re.compile(r"\d{1,9}(,\d{1,9}){3}")
# Where a scaled decode cuts a box is told by its exact place, of which samples.tsv keeps the whole pixels.
ALMOST_ONE = 1 - 2e-6
SHOWN = 3  # names of what is in a folder
AHEAD = 4  # pictures a thread that are read before they are decoded

Right = Callable[[int, bytes], bool]
Made = Row | Reason  # a row, or why it cannot be made


class Origin(Protocol):
    """Where rows can be had again."""

    def what(self) -> str:
        """What it seems to be, for people."""

    def advice(self) -> str:
        """What to give instead where it lacks a picture."""

    def rows(self, wanted: Sequence[Sample], right: Right) -> Iterator[tuple[Sample, Made]]:
        """Each wanted row once, in any order; `right` says whether these are the pixels of a row of that number.

        A sample without a digest is a row of whose picture only name and box are known. Raises Stopped.
        """


def open_origin(manifest: Manifest, source: str) -> Origin:
    """What `source` is: a finished store, or what the store of this manifest was built from; BuildError, StoreError."""
    if os.path.isfile(os.path.join(source, "store.json")):
        return StoredRows(manifest, Path(source))
    return PictureRows(manifest, source)


class PictureRows:
    """Rows from pictures below `source`: decoded as the recipe says, on as many threads as there are cores."""

    def __init__(self, manifest: Manifest, source: str) -> None:
        self._manifest, self._source = manifest, source
        self._roots = roots_of(str(manifest.source.get("kind", "")), source)
        self._recipes = recipes_of(manifest.recipe)

    def what(self) -> str:
        """As Origin says."""
        if not os.path.isdir(self._source):
            return "a file" if os.path.isfile(self._source) else "a pattern of files"
        with os.scandir(self._source) as listing:
            some = sorted(item.name for item in islice(listing, SHOWN + 1))
        more = ", ..." if len(some) > SHOWN else ""
        return f"a folder with {', '.join(some[:SHOWN])}{more}" if some else "an empty folder"

    def advice(self) -> str:
        """As Origin says."""
        listed = self._manifest.source.get("kind") == "list"
        what = "the folder that the list's paths start from" if listed else "what the store was built from"
        return f"give {what} as --source"

    def rows(self, wanted: Sequence[Sample], right: Right) -> Iterator[tuple[Sample, Made]]:
        """As Origin says."""
        if not self._recipes:
            why = self._no_recipe()
            yield from ((sample, why) for sample in wanted)
            return
        left: dict[bytes, list[Sample]] = {}
        for sample in wanted:
            left.setdefault(name_bytes(sample.source), []).append(sample)
        search, others = Wanted(set(left)), dict[bytes, str]()
        threads = usable_cores() if all(recipe.map is None for recipe in self._recipes) else 1  # maps are the user's
        try:
            decoders = self._decoders(threads)
        except BuildError as error:  # the map is not there, or another
            yield from ((sample, Reason(str(error))) for sample in wanted)
            return

        def found() -> Iterator[tuple[Sample, bytes]]:
            for name, data in find_pictures(self._roots, search):
                digest = hexdigest(data)
                fitting = [sample for sample in left[name] if sample.digest in ("", digest)]
                left[name] = [sample for sample in left[name] if sample.digest not in ("", digest)]
                if not fitting:
                    others[name] = digest
                if not left[name]:
                    search.names.discard(name)
                yield from ((sample, data) for sample in fitting)

        def made(sample: Sample, data: bytes) -> tuple[Sample, Made]:
            own = decoders.get()
            try:
                return sample, self._decoded(own, sample, data, right)
            finally:
                decoders.put(own)

        yield from _in_threads(threads, made, found())
        for name, samples in left.items():
            for sample in samples:
                yield sample, self._not_found(sample, others.get(name), search.problems.get(name))

    def _decoders(self, threads: int) -> SimpleQueue[list[Decoder]]:
        names = [cls.name for cls in self._manifest.classes]
        free: SimpleQueue[list[Decoder]] = SimpleQueue()
        for _ in range(threads):
            free.put([Decoder(recipe, names) for recipe in self._recipes])
        return free

    def _decoded(self, decoders: list[Decoder], sample: Sample, data: bytes, right: Right) -> Made:
        why = ""
        for decoder, recipe in zip(decoders, self._recipes, strict=True):
            for entry in _entries(sample, recipe):
                try:
                    row = decoder.row(data, entry)
                except (Undecodable, LeftOut) as error:
                    why = why or f"{error}, which it was not when the store was built"
                    continue
                if len(row.pixels) == self._manifest.row_bytes and right(sample.row, row.pixels):
                    return row
        other = self._other_bytes()
        return Reason(f"not decoded; {other}", sample.source, f"{why}; {other}") if why else Reason(other)

    def _not_found(self, sample: Sample, digest: str | None, problem: str | None) -> Reason:
        if digest:
            was = f"another picture by now (xxh3_64 {digest}, the row is of {sample.digest})"
            advice = f"give a --source that has it, or {REBUILD}"
            return Reason("another picture by now", sample.source, f"{was}; {advice}")
        if problem:
            return Reason(problem, sample.source)
        return Reason(f"not in {self._source}; {self.advice()}", sample.source, absent=True)

    def _no_recipe(self) -> Reason:
        sizes = self._manifest.recipe.get("resized_from")
        if isinstance(sizes, list):
            return Reason(f"resized from {shape_text(sizes)}; give as --source the store that it was converted from")
        return Reason("the recipe in store.json is not that of `prep build`; give as --source a store that has the row")

    def _other_bytes(self) -> str:
        written, found = self._manifest.recipe.get("decoders"), decoder_versions("npy")
        if isinstance(written, dict):
            other = [f"{name} {version}" for name, version in written.items() if found.get(name, version) != version]
            other += [f"{name} {written[name]}" for name in written if name not in found and name != "libhdf5"]
            if other:
                here = ", ".join(f"{name} {version}" for name, version in found.items())
                return f"decodes to other bytes: the decoders here are {here}; install {', '.join(other)}"
        return f"decodes to other bytes; {COPY}"


def recipes_of(facts: dict[str, Any]) -> list[Recipe]:
    """The recipes by which pictures became a store's rows: several where stores were joined, none where resized."""
    if isinstance(joined := facts.get("joined"), list):
        found = [recipe for one in joined if isinstance(one, dict) for recipe in recipes_of(one)]
        return list(dict.fromkeys(found)) if "resized_from" not in facts else []
    try:
        # Earlier releases wrote neither boxes nor a map where there were none.
        known = {"boxes": None, "map": None, **facts}
        return [Recipe.from_facts({key: value for key, value in known.items() if key != "selected"})]
    except (KeyError, TypeError, ValueError):  # resized, or another writer's
        return []


def _entries(sample: Sample, recipe: Recipe) -> Iterator[Entry]:
    """What a row may have been made of, likeliest first: several only where a scaled picture was cut."""
    plain = Entry(name_bytes(sample.source), sample.label, 0, 0)
    if not sample.box:
        yield plain
        return
    if not BOX.fullmatch(sample.box):  # no box of ours
        return
    edges = list(map(int, sample.box.split(",")))
    inward = (ALMOST_ONE, ALMOST_ONE, -ALMOST_ONE, -ALMOST_ONE)
    steps = product((0, 1), repeat=4) if recipe.scaled_decode else [(0, 0, 0, 0)]
    sides = (sample.width, sample.height, sample.width, sample.height)
    for step in steps if all(sides) else ():
        moved = [edge + by * share for edge, by, share in zip(edges, step, inward, strict=True)]
        left, top, right, bottom = (edge / side for edge, side in zip(moved, sides, strict=True))
        box: Box = (left, top, right, bottom)
        yield replace(plain, boxes=(box,))


def _in_threads(
    threads: int, make: Callable[[Sample, bytes], tuple[Sample, Made]], items: Iterator[tuple[Sample, bytes]]
) -> Iterator[tuple[Sample, Made]]:
    """What `make` gives for each, in order; few are read ahead of those that are being made."""
    with ThreadPoolExecutor(threads) as pool:
        under_way: deque[Future[tuple[Sample, Made]]] = deque(
            pool.submit(make, *item) for item in islice(items, AHEAD * threads)
        )
        while under_way:
            yield under_way.popleft().result()
            under_way.extend(pool.submit(make, *item) for item in islice(items, 1))


class StoredRows:
    """Rows of another finished store: those of the same pictures and boxes, resized where the recipe says so."""

    def __init__(self, manifest: Manifest, path: Path) -> None:
        self._path = path
        self._rows = StoreRows(path, read_manifest(path / "store.json").digest)
        self._why: Reason | None = None
        self._maker: StoredRowMaker | None = None
        mine, theirs = manifest.shape, self._rows.manifest.shape
        resized, filter_ = manifest.recipe.get("resized_from"), manifest.recipe.get("resize_filter")
        if mine == theirs:
            return
        if resized == list(theirs[:2]) and theirs[2] == 3 and filter_ in FILTERS:
            recipe = Recipe(height=mine[0], width=mine[1], filter=filter_)
            self._maker = StoredRowMaker([self._rows], recipe)
        else:
            sizes = f"{shape_text(mine)}{f' or {shape_text(resized)}' if isinstance(resized, list) else ''}"
            self._why = Reason(f"{path}: has rows of {shape_text(theirs)}, expected {sizes}; give a store of those")

    @property
    def root(self) -> Path:
        """Where the store lies."""
        return self._path

    def what(self) -> str:
        """As Origin says."""
        return f"a store of {counted(self._rows.manifest.count, 'row')}"

    def advice(self) -> str:
        """As Origin says."""
        return "give as --source a store that has it, or the pictures"

    def rows(self, wanted: Sequence[Sample], right: Right) -> Iterator[tuple[Sample, Made]]:
        """As Origin says."""
        places = self._places(wanted) if not self._why else {}
        for sample in wanted:
            yield sample, self._why or self._row(sample, places.get(_key(sample), []), right)

    def _places(self, wanted: Sequence[Sample]) -> dict[tuple[str, str, str], list[int]]:
        places: dict[tuple[str, str, str], list[int]] = {_key(sample): [] for sample in wanted}
        for found in self._rows.store.samples:
            for digest in (found.digest, ""):
                here = places.get((found.source, found.box, digest))
                if here is not None and found.row in self._rows.store.rows:
                    here.append(found.row)
        return places

    def _row(self, sample: Sample, places: list[int], right: Right) -> Made:
        why = Reason(f"no row in {self._path}; {self.advice()}", sample.source, absent=True)
        for place in places:
            found = self._rows.sample(place)
            try:
                data = self._rows.read(place)
            except BuildError as error:
                why = Reason("damaged there, too", sample.source, str(error))
                continue
            row = Row(data, found.width, found.height, "", found.digest, box=found.box)
            if self._maker is not None:
                row = self._maker.row(data, Entry(name_bytes(found.source), 0, 0, 0, unit=0, place=place))
            if right(sample.row, row.pixels):
                return row
            told = f"row {place} of {self._path} has other pixels; give a copy of the store itself"
            why = Reason("other pixels there", sample.source, told)
        return why


def _key(sample: Sample) -> tuple[str, str, str]:
    return sample.source, sample.box, sample.digest
