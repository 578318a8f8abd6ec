"""The plan: which sample goes to which row. It does not change once decoding starts.

`scan` lists a source as one table, with a record per sample. A plan is the same table in row order, as files in
OUT/.build/plan-X, where X is different for each process that plans:

- rows.npy: one record per row.
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
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.formatting import counted, quoted
from decodeonce.prep.building.journal import BlockRecord
from decodeonce.prep.entry import Entry, name_text
from decodeonce.prep.recipe import Recipe, differences
from decodeonce.prep.sources import open_source
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.labels import NumberColumn
from decodeonce.remote import absolute, as_path
from decodeonce.store import Column, ImageClass, Reject, StorePaths
from decodeonce.store.columns import column_file
from decodeonce.store.containers import CONTAINERS
from decodeonce.store.files import make_folder, publish, remove_tree, write_atomic
from decodeonce.store.hashing import GOLDEN, digest_of, mix, sign
from decodeonce.store.layout import Json, missing_advice
from decodeonce.store.manifest import DATA_OFFSET, check_column
from decodeonce.store.shard_file import PAGE
from decodeonce.store.writer import write_array

PLAN_VERSION = 9
ROW = np.dtype(
    [
        ("label", "<i4"),
        ("name_bytes", "<i4"),
        ("name_start", "<i8"),
        ("size", "<i8"),
        ("mtime_ns", "<i8"),
        ("unit", "<i4"),
        ("place", "<i8"),
    ]
)
PACKED = struct.Struct("<iiqqqiq")  # a record of dtype ROW
AS_BYTES = np.dtype(f"V{ROW.itemsize}")  # how rows.npy stores it
ROWS, NAMES, COLUMN = "rows.npy", "names.bin", "column-{}.npy"
CHUNK = 1 << 13
# Listings are compared by hashes of 16 bytes per sample. Python objects would take 700 bytes, 10 GB for 14 million.
HASHES = np.dtype([("name", "<u8"), ("facts", "<u8")])
hash_of = xxhash.xxh3_64_intdigest


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

    def place(self, row: int) -> tuple[int, int]:
        """Return the shard of a row and the byte offset in it."""
        shard, inside = divmod(row, self.shard_rows)
        return shard, DATA_OFFSET + inside * self.row_bytes

    def of_task(self, task: int, tasks: int) -> range:
        """Return the contiguous share of blocks of one of `tasks` tasks; sizes of shares differ by at most one."""
        return range(task * len(self) // tasks, (task + 1) * len(self) // tasks)


@dataclass(frozen=True)
class PlannedSamples:
    """A table of samples, in the source's order or in row order.

    Attributes:
        rows: One record of dtype ROW per sample.
        names: The bytes of all names, in the order of the samples.
        planned: The values of `Entry.planned` by name and of the source's columns by file name, each (samples, ...).
    """

    rows: NDArray[np.void]
    names: NDArray[np.uint8]
    planned: Mapping[str, np.ndarray]

    def entry(self, row: int) -> Entry:
        """Return one sample."""
        return self.entries(row, row + 1)[0]

    def entries(self, first: int, last: int) -> list[Entry]:
        """Return the samples [first, last)."""
        places = self.rows[first:last][["unit", "place"]].tolist()
        lists = [values[first:last].tolist() for values in self.planned.values()]
        held = zip(*lists, strict=True) if lists else [()] * len(places)
        return [
            Entry(*value, unit=unit, place=place, planned=dict(zip(self.planned, numbers, strict=True)))
            for value, (unit, place), numbers in zip(self.values(first, last), places, held, strict=True)
        ]

    def values(self, first: int, last: int) -> list[tuple[bytes, int, int, int]]:
        """Return (name, label, size, mtime_ns) of samples [first, last): faster than `entries` for millions of rows."""
        records = self.rows[first:last].tolist()
        start, end = records[0][2], records[-1][2] + records[-1][1]
        names = self.names[start:end].tobytes()
        return [
            (names[at - start : at - start + length], label, size, mtime_ns)
            for label, length, at, size, mtime_ns, _, _ in records
        ]

    def _names_and_hashes(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield the name of each sample, its hash, and a hash of what may change under this name."""
        for first in range(0, len(self.rows), CHUNK):
            for name, _, size, mtime_ns in self.values(first, min(first + CHUNK, len(self.rows))):
                yield name, hash_of(name), hash_of(b"%d %d" % (size, mtime_ns))

    def changes_in(self, found: PlannedSamples) -> str:
        """Summarize how other samples differ from these, with the first change of each kind."""
        planned, now = self._hashes(), found._hashes()
        _, here, there = np.intersect1d(planned["name"], now["name"], assume_unique=True, return_indices=True)
        parts = [
            found._count("new", np.setdiff1d(now["name"], planned["name"], assume_unique=True)),
            self._count("gone", np.setdiff1d(planned["name"], now["name"], assume_unique=True)),
            self._count("changed", planned["name"][here[planned["facts"][here] != now["facts"][there]]]),
        ]
        return "; ".join(filter(None, parts)) or "the same images with other classes, boxes, values, places or rejects"

    def _hashes(self) -> NDArray[np.void]:
        """Return one record of dtype HASHES per name, sorted: an image with several boxes has several samples."""
        hashes = np.fromiter((each[1:] for each in self._names_and_hashes()), HASHES, len(self.rows))
        return hashes[np.unique(hashes["name"], return_index=True)[1]]

    def _count(self, kind: str, names: NDArray[np.uint64]) -> str:
        if not len(names):
            return ""
        wanted = set(names.tolist())
        first = min(name for name, hashed, _ in self._names_and_hashes() if hashed in wanted)
        return f"{len(names)} {kind} (first {name_text(first)})"


@dataclass(frozen=True)
class Listing:
    """A scanned source: its samples in its own order, and those that cannot become rows.

    Attributes:
        samples: The samples that can become rows.
        columns: The columns in the source's `column_names`.
        rejects: Samples that cannot become rows.
        digest: Covers class, size, name, boxes and values of every candidate, and whether it can become a row.
        digest_with_times: Covers the same and the modification times and places.
    """

    samples: PlannedSamples
    columns: tuple[Column, ...]
    rejects: tuple[Reject, ...]
    digest: str
    digest_with_times: str

    def __len__(self) -> int:
        return len(self.samples.rows)

    @property
    def candidates(self) -> int:
        """Number of samples and plan-time rejects together: the total for --max-bad."""
        return len(self) + len(self.rejects)


def scan(source: Source, expect: int | None = None) -> Listing:
    """List a source once, and log its warnings. Memory per sample is 44 bytes, the name, and 8 bytes for each number.

    Raise BuildError if it does not list `expect` images (None: any number), or none that can become a row.
    """
    rows, names, rejects = bytearray(), bytearray(), []
    own = [column_file(name) for name in source.column_names]
    numbers = {file: NumberColumn(name) for file, name in zip(own, source.column_names, strict=True)}
    digest, digest_with_times = xxhash.xxh3_64(), xxhash.xxh3_64()
    for entry in source.entries():
        fact = b"%d\t%d\t%s%s\n" % (entry.label, entry.size, entry.name, _digested(entry))
        digest.update(fact)
        digest_with_times.update(b"%d\t%d\t%d\t%s" % (entry.mtime_ns, entry.unit, entry.place, fact))
        if entry.planned:  # may hold times and places, too
            digest_with_times.update(repr(entry.planned).encode())
        if entry.problem:
            rejects.append(Reject(entry.text, entry.problem, "rejected"))
            continue
        place = (entry.size, entry.mtime_ns, entry.unit, entry.place)
        rows += PACKED.pack(entry.label, len(entry.name), len(names), *place)
        names += entry.name
        for name, value in (*zip(own, entry.values, strict=True), *entry.planned.items()):
            numbers.setdefault(name, NumberColumn(name)).append(value)
    for warning in source.warnings(len(rows) // PACKED.size):
        logging.getLogger("decodeonce").warning("%s: %s", source.root, warning)
    planned = {name: column.to_array() for name, column in numbers.items()}
    samples = PlannedSamples(np.frombuffer(rows, ROW), np.frombuffer(names, np.uint8), planned)
    columns = tuple(numbers[file].to_column()[0] for file in own)
    listing = Listing(samples, columns, tuple(rejects), digest.hexdigest(), digest_with_times.hexdigest())
    check_expected(source, listing.candidates, expect)
    if not len(listing):
        tried = f"; all {listing.candidates} candidates are rejects, first {rejects[0]}" if rejects else ""
        raise BuildError(f"{source.root}: no images found{tried}; read as {source.found}")
    return listing


def _digested(entry: Entry) -> bytes:
    """Return the entry's texts and values for the digest, or a mark if it has a problem.

    The problem's text is not part of the digest, because operating systems word errors differently.
    """
    if entry.problem:
        return b"\t!"
    return "".join(f"\t{fact}" for fact in (*entry.digested, *entry.values)).encode()


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


def reject_error(reject: object) -> BuildError:
    """Return the error for a reject with --on-bad fail."""
    return BuildError(f"{reject}; repair or remove the image, or pass --on-bad reject")


def check_expected(source: Source, found: int, expect: int | None) -> None:
    """Raise BuildError unless a source lists the expected number of images."""
    if expect is not None and found != expect:
        what = f"{counted(found, 'image')} found in {counted(len(source.classes()), 'class', 'classes')}"
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
        columns: The numeric columns of the source.

    Example:
        >>> plan = make_plan(open_folder("imagenet/val"), Path("small.store"), Recipe(height=64, width=64))
        >>> plan.count, plan.recipe.shape, [cls.name for cls in plan.classes]
        (16, (64, 64, 3), ['n01440764', 'n01443537', 'n01484850', 'n02123045'])
    """

    def __init__(self, paths: StorePaths, content: Json) -> None:
        self.paths, self.content = paths, content
        self.count = int(content["count"])
        self.rejects = [Reject(**reject) for reject in content["rejects"]]
        self.candidates = self.count + len(self.rejects)
        self.recipe = Recipe.from_facts(content["recipe"])
        self.blocks = Blocks(self.count, self.recipe.row_bytes, content["block_rows"], content["shard_rows"])
        self.classes = tuple(ImageClass(**cls) for cls in content["classes"])
        self.columns = [Column(**{**column, "shape": tuple(column["shape"])}) for column in content["columns"]]

    @cached_property
    def samples(self) -> PlannedSamples:
        """The samples in row order, memory-mapped."""
        folder = self.paths.build / self.content["folder"]
        rows, names_file = self._mapped(folder / ROWS).view(ROW), folder / NAMES
        nbytes = int(rows[-1]["name_start"]) + int(rows[-1]["name_bytes"])
        if names_file.stat().st_size != nbytes:
            raise self._damaged(names_file)
        # All names may be empty, and an empty file cannot be mapped.
        names = np.memmap(names_file, np.uint8, "r") if nbytes else np.empty(0, np.uint8)
        planned = enumerate(self.content["planned"])
        return PlannedSamples(rows, names, {name: self._mapped(folder / COLUMN.format(k)) for k, (name, _) in planned})

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
        return self.rejects_of(
            sorted(reject for record in records for reject in record.rejects if reject[2] == "rejected")
        )

    def shard(self, index: int) -> Path:
        """Return the path of a shard."""
        return self.paths.shard(index, CONTAINERS[self.recipe.container].suffix)

    def check_rejects(self, rejects: int, first: object, max_bad: str) -> None:
        """Raise BuildError if `max_bad` allows fewer than `rejects` rejects, of which `first` is one."""
        allowed = allowed_rejects(max_bad, self.candidates)
        if rejects > allowed:
            found = (
                f"{rejects} of {counted(self.candidates, 'image')} {'is a reject' if rejects == 1 else 'are rejects'}"
            )
            raise BuildError(
                f"{found}, --max-bad {max_bad} allows {allowed}; first {first}; list them with "
                f"`prep status {quoted(self.paths.root)}`; to continue, run the same command with a higher "
                "--max-bad: completed blocks are kept"
            )

    def source(self) -> Source:
        """Open the source that this plan was made from."""
        content = self.content["source"]
        return open_source(content["kind"], as_path(content["root"]), content["facts"])


def read_plan(paths: StorePaths) -> Plan:
    """Read the plan in OUT/.build; raise BuildError if it is missing or damaged."""
    try:
        encoded = paths.plan.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        advice = f"{missing_advice(paths.root)}run `prep plan` or `prep build` first"
        raise BuildError(f"{paths.root}: no plan here (no {paths.plan}); {advice}") from None
    try:
        content = json.loads(encoded)
        if content["digest"] == digest_of(content):
            version = content["version"]
            if version == PLAN_VERSION:
                return Plan(paths, content)
            found = f"plan version is {version!r}, expected {PLAN_VERSION}"
            advice = f"finish with the decodeonce release that made it, or remove {paths.root} and build again"
            raise BuildError(f"{paths.plan}: {found}; {advice}")
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        pass
    raise BuildError(f"{paths.plan}: damaged; remove {paths.root} and build again")


def plan_content(source: Source, listing: Listing, recipe: Recipe, decoders: dict[str, str]) -> Json:
    """Return the content of plan.json, without its digest and the folder of the other files."""
    if taken := {c.name for c in (*listing.columns, *source.columns())} & {one.name for one in recipe.paired}:
        raise BuildError(f"{source.root}: {min(taken)!r} is a column and a paired image; give one of them another name")
    try:
        for column in source.columns():
            check_column(column, len(listing))
    except ValueError as error:
        raise BuildError(f"{source.root}: {error}") from None
    block_rows = source.block_rows(len(listing), recipe.row_bytes)
    blocks = Blocks.of(len(listing), recipe.row_bytes, recipe.shard_size, block_rows)
    return {
        "version": PLAN_VERSION,
        "count": len(listing),
        "rejects": [asdict(reject) for reject in listing.rejects],
        "block_rows": blocks.block_rows,
        "shard_rows": blocks.shard_rows,
        "columns": [asdict(column) for column in listing.columns],
        "planned": [[name, values[:1].nbytes] for name, values in listing.samples.planned.items()],
        "classes": [{"name": c.name, "description": c.description} for c in source.classes()],
        "recipe": recipe.facts(decoders),
        "manifest": source.manifest_facts(recipe.facts(decoders), listing.digest),
        "source": {
            "kind": source.kind,
            "root": absolute(source.root),
            "facts": source.facts(),
            "fingerprint": source.fingerprint(),
            "read_unit": source.read_unit,
            "digest_with_times": listing.digest_with_times,
        },
    }


def write_plan(paths: StorePaths, listing: Listing, content: Json) -> None:
    """Write the files of a plan, plan.json last. If another process has written its own first, that is the plan."""
    seed, by_unit = content["recipe"]["shuffle_seed"], bool(content["source"]["read_unit"])
    order = row_order(listing, seed, by_unit=by_unit)
    chunks = [order[first : first + CHUNK] for first in range(0, len(order), CHUNK)]
    folder = paths.build / f"plan-{os.urandom(4).hex()}"
    make_folder(folder)
    write_atomic(folder / NAMES, (_names(listing, chunk) for chunk in chunks))
    write_array(folder / ROWS, order.shape, AS_BYTES, _rows(listing, chunks))
    for number, values in enumerate(listing.samples.planned.values()):
        write_array(folder / COLUMN.format(number), values.shape, values.dtype, map(values.__getitem__, chunks))
    if not publish(paths.plan, sign({**content, "folder": folder.name})):
        remove_tree(folder)


def move_plan(plan: Plan, content: Json) -> Plan:
    """Give a plan the `content` of the same source in another place, and return it."""
    moved = {**content, "folder": plan.content["folder"]}
    write_atomic(plan.paths.plan, [sign(moved)])
    return Plan(plan.paths, moved)


def _names(listing: Listing, chunk: NDArray[np.int64]) -> bytes:
    """Return the names of the samples at these positions of the source's order, concatenated."""
    names = listing.samples.names.data
    spans = listing.samples.rows[chunk][["name_start", "name_bytes"]].tolist()
    return b"".join(names[start : start + length] for start, length in spans)


def _rows(listing: Listing, chunks: list[NDArray[np.int64]]) -> Iterator[NDArray[np.void]]:
    """Yield the records of the samples at these positions, with the starts of names that follow each other."""
    start = 0
    for chunk in chunks:
        rows = listing.samples.rows[chunk]
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
    """Return the source positions in row order; `by_unit` permutes whole read units and keeps the order within one."""
    if seed is None or not by_unit or not len(listing):
        return shuffled(len(listing), seed)
    units = listing.samples.rows["unit"]
    ranks = np.argsort(shuffled(int(units.max()) + 1, seed))
    return np.argsort(ranks[units], kind="stable")


def check_matches_plan(plan: Plan, listing: Listing, content: Json) -> None:
    """Raise BuildError unless `content` match the plan; only the location of the source may differ."""
    out, planned, found = plan.paths.root, plan.content["source"], content["source"]
    recipes = (
        {**some["recipe"], "columns": [one["name"] for one in some["columns"]]} for some in (content, plan.content)
    )
    if changes := "; ".join(differences(*recipes)):
        advice = "use the plan's settings, or remove OUT and build again"
        raise BuildError(f"{out}: planned with a different recipe: {changes}; {advice}")
    same = planned["kind"] == found["kind"] and plan.content["classes"] == content["classes"]
    if not same or planned["digest_with_times"] != found["digest_with_times"]:
        then, now = (f"{some['root']} ({some['kind']})" for some in (planned, found))
        what = f"{out}: the source changed since the plan: {plan.samples.changes_in(listing.samples)}"
        advice = "pass the planned SRC unchanged, or remove OUT and build again"
        raise BuildError(f"{what}; planned from {then}, SRC is {now}; {advice}")
