"""The plan: which sample goes to which row. It does not change once decoding starts.

A plan is a listing of the source in row order, as files in OUT/.build/plan-X, where X is different for each process
that plans:

- records.npy: one record per row.
- names.bin: the names of the samples, concatenated.
- column-0.npy and so on: one file per numeric column, and one for each of the source's other numbers.

OUT/.build/plan.json has the settings, the rejects and the name of this folder. It is written last, so the plan exists
once this file does. If several nodes plan at once, the file of one of them appears, and all others read it.

Arrays are memory-mapped, so that a task reads only its own rows.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import counted, quoted
from decodeonce.prep.building.journal import BlockRecord, Journals
from decodeonce.prep.listing import CHUNK, RECORD, Listing
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.recipe import Recipe, differences
from decodeonce.prep.sources import open_source
from decodeonce.prep.sources.base import Source
from decodeonce.remote import absolute, as_path
from decodeonce.store import Column, ImageClass, Reject
from decodeonce.store.files import PAGE, make_folder, publish, remove_tree, write_atomic
from decodeonce.store.format import CONTAINERS
from decodeonce.store.hashing import GOLDEN, digest_of, mix, sign
from decodeonce.store.layout import Json, missing_advice
from decodeonce.store.manifest import DATA_OFFSET, check_column
from decodeonce.store.writer import write_array

PLAN_VERSION = 13
AS_BYTES = np.dtype(f"V{RECORD.itemsize}")  # how records.npy stores it
RECORDS, NAMES, COLUMN = "records.npy", "names.bin", "column-{}.npy"


# The rows per block: see `block_rows_for`.
LARGEST, SMALLEST, LARGEST_IN_PAGES = 32 << 20, 1 << 20, 64 << 20


def block_rows_for(count: int, row_bytes: int) -> int:
    """Return the rows per block: 1/256 of the store, within 1 MiB and 32 MiB, in whole pages if up to 64 MiB."""
    target = max(SMALLEST, min(LARGEST, count * row_bytes // 256))
    rows = max(1, target // row_bytes)
    unit = PAGE // math.gcd(row_bytes, PAGE)
    in_pages = math.ceil(rows / unit) * unit
    return in_pages if in_pages * row_bytes <= LARGEST_IN_PAGES else rows


@dataclass(frozen=True)
class Block:
    """Rows [first, last) of the plan, at byte `offset` of shard `shard`."""

    index: int
    first: int
    last: int
    shard: int
    offset: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first


@dataclass(frozen=True)
class Blocks:
    """How `count` rows are divided into blocks and shards; every block is in one shard."""

    count: int
    row_bytes: int
    block_rows: int
    shard_rows: int

    @classmethod
    def of(cls, count: int, row_bytes: int, shard_size: int, block_rows: int | None = None) -> Blocks:
        """Divide rows into blocks; a shard has at least one block. `block_rows` None: use `block_rows_for`."""
        block_rows = block_rows or block_rows_for(count, row_bytes)
        shard_rows = max(1, shard_size // row_bytes // block_rows) * block_rows
        return cls(count, row_bytes, block_rows, shard_rows)

    def __len__(self) -> int:
        return math.ceil(self.count / self.block_rows)

    def __getitem__(self, index: int) -> Block:
        if not 0 <= index < len(self):
            raise IndexError(f"block {index} of {len(self)}")
        first = index * self.block_rows
        return Block(index, first, min(first + self.block_rows, self.count), *self.place(first))

    @property
    def shards(self) -> int:
        """Number of shards."""
        return math.ceil(self.count / self.shard_rows)

    @property
    def shard_bytes(self) -> int:
        """Size of all shards in bytes."""
        return self.shards * DATA_OFFSET + self.count * self.row_bytes

    def place(self, row: int) -> tuple[int, int]:
        """Return the shard of a row and the byte offset in it."""
        shard, inside = divmod(row, self.shard_rows)
        return shard, DATA_OFFSET + inside * self.row_bytes

    def of_task(self, task: int, tasks: int) -> range:
        """Return the contiguous share of blocks of one of `tasks` tasks; sizes of shares differ by at most one."""
        return range(task * len(self) // tasks, (task + 1) * len(self) // tasks)


def checked_listing(source: Source, expect: int | None = None) -> Listing:
    """List a source once, and log its warnings.

    Raise BuildError if it does not list `expect` images (None: any number), or none that can become a row.
    """
    listing = source.listing()
    for warning in listing.warnings:
        logging.getLogger("decodeonce").warning("%s: %s", source.root, warning)
    if expect is not None:
        check_expected(source, listing.candidates, len(listing.classes), expect)
    if not len(listing):
        raise _no_images(source, listing.rejects)
    return listing


def _no_images(source: Source, rejects: Sequence[Reject]) -> BuildError:
    rejects = sorted(rejects, key=lambda one: ";" not in one.reason)  # first those with a likely cause
    tried = f"; all {len(rejects)} candidates are rejects, first {rejects[0]}" if rejects else ""
    return BuildError(f"{source.root}: no images found{tried}; read as {source.found}")


def allowed_rejects(max_bad: str, candidates: int) -> int:
    """Return how many of `candidates` images may be rejects: a percentage of them such as "0.1%", a number, or "auto".

    "auto" allows 0.1%. In a small source, where that is less than ten images, it allows a tenth, at most ten images.
    """
    if max_bad == "auto":
        return max(candidates // 1000, min(10, math.ceil(candidates / 10)))
    if not re.fullmatch(r"\d+|\d+(\.\d+)?%", max_bad):
        raise ValueError(f"max-bad is {max_bad!r}, expected a number of images (25), a percentage (0.1%) or auto")
    if not max_bad.endswith("%"):
        return int(max_bad)
    whole, _, decimals = max_bad[:-1].partition(".")
    return candidates * int(whole + decimals) // int(f"100{'0' * len(decimals)}")


def max_bad_flag(max_bad: str) -> str:
    """Return the flag that sets `max_bad`, to append to a command; "" for the default."""
    return "" if max_bad == "auto" else f" --max-bad {max_bad}"


def enough_rejects(expected: int, candidates: int) -> int:
    """Return how many rejects to allow if about `expected` of `candidates` images will be rejects: twice as many."""
    return min(2 * expected, candidates)


def reject_error(reject: object) -> BuildError:
    """Return the error for a reject with --on-bad fail."""
    return BuildError(f"{reject}; repair or remove the image, or pass --on-bad reject")


def in_classes(count: int) -> str:
    """Return " in 3 classes"; "" for no classes, because those of a dataset may be known later."""
    return f" in {counted(count, 'class', 'classes')}" if count else ""


def check_expected(source: Source, found: int, classes: int, expect: int) -> None:
    """Raise BuildError unless a source lists the expected number of images."""
    if found != expect:
        what = f"{counted(found, 'image')} found{in_classes(classes)}"
        raise BuildError(
            f"{source.root}: {what}, but --expect is {expect}; look for missing or new files (an unreachable file "
            "server hides its files), or pass the right number"
        )


class Plan:
    """The plan of a build, read from OUT/.build.

    Args:
        paths: The paths of the store.
        content: The content of plan.json.

    Attributes:
        count: Number of planned rows, before rejects are removed.
        rejects: The samples that were rejected when the plan was made.
        candidates: Number of samples that the source listed, rejects included.
        recipe: The recipe, without the decoders.
        blocks: How the planned rows are divided into blocks and shards.
        classes: The classes in label order.
        columns: The numeric columns of the source; only their names, if their values are known later.

    Example:
        >>> plan = make_plan(open_folder("imagenet/val"), Path("small.store"), Recipe(height=64, width=64))
        >>> plan.count, plan.recipe.shape, [cls.name for cls in plan.classes]
        (16, (64, 64, 3), ['n01440764', 'n01443537', 'n01484850', 'n02123045'])
    """

    def __init__(self, paths: BuildPaths, content: Json) -> None:
        self.paths, self.content = paths, content
        self.count = int(content["count"])
        self.rejects = [Reject(**reject) for reject in content["rejects"]]
        self.candidates = self.count + len(self.rejects)
        self.recipe = Recipe.from_facts(content["recipe"])
        self.blocks = Blocks(self.count, self.recipe.row_bytes, content["block_rows"], content["shard_rows"])
        self.classes = tuple(ImageClass(**cls) for cls in content["classes"])
        self.columns = [Column(**{**column, "shape": tuple(column["shape"])}) for column in content["columns"]]

    @cached_property
    def samples(self) -> Listing:
        """The samples in row order, memory-mapped."""
        folder = self.paths.build / self.content["folder"]
        records, names_file = self._mapped(folder / RECORDS).view(RECORD), folder / NAMES
        nbytes = int(records[-1]["name_start"]) + int(records[-1]["name_bytes"])
        if names_file.stat().st_size != nbytes:
            raise self._damaged(names_file)
        # All names may be empty, and an empty file cannot be mapped.
        names = np.memmap(names_file, np.uint8, "r") if nbytes else np.empty(0, np.uint8)
        number_bytes = enumerate(self.content["number_bytes"])
        numbers = {name: self._mapped(folder / COLUMN.format(k)) for k, (name, _) in number_bytes}
        return Listing(records, names, numbers, tuple(self.columns), classes=self.classes)

    def _mapped(self, path: Path) -> np.ndarray:
        try:
            array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        except ValueError:  # its text would quote the file's content
            raise self._damaged(path) from None
        if len(array) != self.count:
            raise self._damaged(path)
        return array

    def _damaged(self, path: Path) -> BuildError:
        return BuildError(f"{path}: damaged; remove {quoted(self.paths.root)} and build again")

    def rejects_of(self, listed: Iterable[tuple[int, str, str]]) -> list[Reject]:
        """Return the lines of rejects.tsv for these (planned row, reason, action)."""
        return [Reject(self.samples.entry(row).text, reason, action) for row, reason, action in listed]

    def rejects_in(self, records: Iterable[BlockRecord]) -> list[Reject]:
        """Return the rejects of these blocks."""
        listed = (reject for record in records for reject in record.rejects if reject[2] == "rejected")
        return self.rejects_of(sorted(listed))

    def shard(self, index: int) -> Path:
        """Return the path of a shard."""
        return self.paths.shard(index, CONTAINERS[self.recipe.container].suffix)

    def expected_rejects(self, rejects: int, done: int) -> int:
        """Return the rejects of all images to expect if there are `rejects` after `done` rows are decoded."""
        planned = len(self.rejects)
        return planned + math.ceil((rejects - planned) * self.count / max(done, 1))

    def check_rejects(self, rejects: int, first: object, max_bad: str, done: int) -> None:
        """Raise BuildError if `max_bad` allows fewer than `rejects` rejects, of which `first` is one.

        `done` is the number of decoded rows; all other rejects are those of the plan.
        """
        allowed = allowed_rejects(max_bad, self.candidates)
        if rejects > allowed:
            raise BuildError(self._too_many(rejects, first, f"--max-bad {max_bad} allows {allowed}", done))

    def _too_many(self, rejects: int, first: object, limit: str, done: int) -> str:
        """Describe rejects beyond the limit, and say how to go on."""
        listed = f"list them with `prep status {quoted(self.paths.root)}`"
        if done and rejects - len(self.rejects) >= done:
            found = f"none of the {done:,} images that were decoded can be stored, for example {first}"
            return f"{found}; correct this first; {listed}"
        are = "is a reject" if rejects == 1 else "are rejects"
        found = f"{rejects} of {counted(self.candidates, 'image')} {are}"
        enough = rejects
        if done < self.count:
            expected = self.expected_rejects(rejects, done)
            enough = enough_rejects(expected, self.candidates)
        if 0 < done < self.count:
            found += f" after {done:,} of {self.count:,} were decoded; at this rate, {expected} of all will be"
        again = f"to leave them out, run the same command with --max-bad {enough}: completed blocks are kept"
        return f"{found}, {limit}; first {first}; {listed}; {again}"

    def source(self) -> Source:
        """Open the source that this plan was made from."""
        content = self.content["source"]
        return open_source(content["kind"], as_path(content["root"]), content["arguments"])

    def user_functions(self) -> list[str]:
        """Return the import paths of the user's map and dataset, `module:function`."""
        source, of_map = self.content["source"], self.recipe.map
        found = [Path(source["root"]).name] if source["kind"].startswith("dataset") else []
        return [of_map.function, *found] if of_map else found


class NoPlanError(BuildError):
    """There is no plan."""


def read_plan(paths: BuildPaths) -> Plan:
    """Read the plan in OUT/.build; raise BuildError if it is missing or damaged, and Stopped if it is empty."""
    try:
        encoded = paths.plan.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _no_plan(paths) from None
    try:
        content = json.loads(encoded)
        if content["digest"] == digest_of(content) and content["version"] == PLAN_VERSION:
            return Plan(paths, content)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        content = None
    raise _unreadable_plan(paths, encoded, content)


def _no_plan(paths: BuildPaths) -> NoPlanError:
    found = f"no plan here (no {paths.plan})" if paths.root.exists() else "no such folder"
    return NoPlanError(f"{paths.root}: {found}; {missing_advice(paths.root)}run `prep plan` or `prep build` first")


def _unreadable_plan(paths: BuildPaths, encoded: bytes, content: Json | None) -> BuildError | Stopped:
    """Return the error for a plan.json. `content` is None if it is not that of a plan."""
    if not encoded:  # `publish` without hard links
        advice = f"run the same command again; if this is printed again, remove {paths.root} first"
        return Stopped(f"{paths.plan}: empty: another process is writing it, or was killed; {advice}")
    if content is None or content["digest"] != digest_of(content):
        return BuildError(f"{paths.plan}: damaged; remove {paths.root} and build again")
    found = f"plan version is {content['version']!r}, expected {PLAN_VERSION}"
    advice = f"finish with the decodeonce release that made it, or remove {paths.root} and build again"
    return BuildError(f"{paths.plan}: {found}; {advice}")


def plan_content(source: Source, listing: Listing, recipe: Recipe, decoders: dict[str, str]) -> Json:
    """Return the content of plan.json, without its digest and the folder of the other files."""
    if columns := [*listing.columns, *source.columns()]:
        _check_columns(source, columns, len(listing), recipe)
    block_rows = source.block_rows(len(listing), recipe.row_bytes)
    blocks = Blocks.of(len(listing), recipe.row_bytes, recipe.shard_size, block_rows)
    return {
        "version": PLAN_VERSION,
        "count": len(listing),
        "rejects": [asdict(reject) for reject in listing.rejects],
        "block_rows": blocks.block_rows,
        "shard_rows": blocks.shard_rows,
        "columns": [asdict(column) for column in listing.columns],
        "number_bytes": [[name, values[:1].nbytes] for name, values in listing.numbers.items()],
        "classes": [{"name": c.name, "description": c.description} for c in listing.classes],
        "box_classes": listing.box_classes,
        "carried": [asdict(reject) for reject in listing.carried],
        "recipe": recipe.facts(decoders),
        "manifest": source.manifest_facts(recipe.facts(decoders), listing.digest),
        "source": {
            "kind": source.kind,
            "root": absolute(source.root),
            "arguments": source.arguments(),
            "fingerprint": source.fingerprint(),
            "unit_name": source.unit_name,
            "digest_with_times": listing.digest_with_times,
        },
    }


def _check_columns(source: Source, columns: list[Column], count: int, recipe: Recipe) -> None:
    if taken := {column.name for column in columns} & {one.name for one in recipe.paired}:
        raise BuildError(f"{source.root}: {min(taken)!r} is a column and a paired image; give one of them another name")
    try:
        for column in columns:
            check_column(column, count)
    except ValueError as error:
        raise BuildError(f"{source.root}: {error}") from None


def write_plan(paths: BuildPaths, listing: Listing, content: Json) -> Plan | None:
    """Write the files of a plan, plan.json last, and return it; None if another process has written its own first."""
    seed, by_unit = content["recipe"]["shuffle_seed"], bool(content["source"]["unit_name"])
    order = row_order(listing, seed, by_unit=by_unit)
    chunks = [order[first : first + CHUNK] for first in range(0, len(order), CHUNK)]
    make_folder(paths.build)  # by itself, so that an error names it
    folder = paths.build / f"plan-{os.urandom(4).hex()}"
    make_folder(folder)
    try:
        write_atomic(folder / NAMES, (_names(listing, chunk) for chunk in chunks))
        write_array(folder / RECORDS, order.shape, AS_BYTES, _rows(listing, chunks))
        for number, values in enumerate(listing.numbers.values()):
            write_array(folder / COLUMN.format(number), values.shape, values.dtype, map(values.__getitem__, chunks))
    except OSError:  # such as a full disk
        with suppress(OSError):  # report the first error
            remove_tree(folder)
        raise
    encoded = sign({**content, "folder": folder.name})
    if publish(paths.plan, encoded):
        return Plan(paths, json.loads(encoded))
    remove_tree(folder)
    return None


def with_moved_source(plan: Plan, content: Json) -> Plan:
    """Give a plan the `content` of its source, which is in another place now, and return it."""
    moved = {**content, "folder": plan.content["folder"]}
    write_atomic(plan.paths.plan, [sign(moved)])
    return Plan(plan.paths, moved)


def _names(listing: Listing, chunk: NDArray[np.int64]) -> bytes:
    """Return the names of the samples at these positions of the source's order, concatenated."""
    names = listing.names.data
    spans = listing.records[chunk][["name_start", "name_bytes"]].tolist()
    return b"".join(names[start : start + length] for start, length in spans)


def _rows(listing: Listing, chunks: list[NDArray[np.int64]]) -> Iterator[NDArray[np.void]]:
    """Yield the records of the samples at these positions, with the starts of names that follow each other."""
    start = 0
    for chunk in chunks:
        rows = listing.records[chunk]
        ends = start + np.cumsum(rows["name_bytes"], dtype=np.int64)
        rows["name_start"] = ends - rows["name_bytes"]
        start = int(ends[-1])
        yield rows.view(AS_BYTES)


def shuffled(count: int, seed: int | None) -> NDArray[np.int64]:
    """Return the source positions in row order, sorted by a hash of position and seed.

    The result is the same on every machine and NumPy version: the hash is a bijection, so keys are unique and any
    sorting algorithm gives the same order. Takes 16 bytes per sample.
    """
    if seed is None:
        return np.arange(count)
    start = np.uint64(xxhash.xxh3_64_intdigest(b"%d" % seed))
    keys = np.arange(count, dtype=np.uint64)
    for first in range(0, count, CHUNK):
        part = keys[first : first + CHUNK]
        part[:] = mix(part * np.uint64(GOLDEN) + start)
    return np.argsort(keys)


def row_order(listing: Listing, seed: int | None, *, by_unit: bool) -> NDArray[np.int64]:
    """Return the source positions in row order; `by_unit` permutes whole units and keeps the order within one."""
    if seed is None or not by_unit or not len(listing):
        return shuffled(len(listing), seed)
    units = listing.records["unit"]
    ranks = np.argsort(shuffled(int(units.max()) + 1, seed))
    return np.argsort(ranks[units], kind="stable")


def check_matches_plan(plan: Plan, listing: Listing, content: Json) -> None:
    """Raise BuildError unless `content` match the plan; only the location of the source may differ."""
    out, planned, found = plan.paths.root, plan.content["source"], content["source"]
    recipes = (
        {**some["recipe"], "columns": [one["name"] for one in some["columns"]]} for some in (content, plan.content)
    )
    if changes := "; ".join(differences(*recipes)):
        advice = f"use the plan's settings, or {_advice_to_start_again(plan)}"
        raise BuildError(f"{out}: planned with a different recipe: {changes}; {advice}")
    same = planned["kind"] == found["kind"] and plan.content["classes"] == content["classes"]
    if not same or planned["digest_with_times"] != found["digest_with_times"]:
        then, now = (f"{some['root']} ({some['kind']})" for some in (planned, found))
        what = f"{out}: the source changed since the plan: {plan.samples.changes_in(listing)}"
        advice = f"pass the planned SRC unchanged, or {_advice_to_start_again(plan)}"
        raise BuildError(f"{what}; planned from {then}, SRC is {now}; {advice}")


def _advice_to_start_again(plan: Plan) -> str:
    """Return the command that removes a plan. Nothing else does, because another process may have begun to decode."""
    done = len(Journals(plan.paths.journals).lines) if plan.paths.journals.is_dir() else 0
    lost = f"decoded so far: {done} of {counted(len(plan.blocks), 'block')}" if done else "no image was decoded yet"
    remove = f"rm -r {quoted(plan.paths.root)}"
    return f"unless another process builds there, run: {remove}, then this command again ({lost})"
