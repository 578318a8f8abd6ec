"""WebDataset's samples: members of a tar in a row whose names are the same up to the first dot."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from decodeonce.errors import BuildError
from decodeonce.prep.entry import name_text
from decodeonce.prep.sources.formats.member import Member
from decodeonce.prep.sources.formats.numbers import NumberColumn

IMAGE_SUFFIXES = (b"jpg", b"jpeg", b"png")
LABELS = (b"cls", b"txt", b"json")  # the first that a sample has counts
LABEL_KEYS = ("label", "cls", "class")
MAX_LABEL_BYTES = 1 << 16
_LONE = re.compile("[\ud800-\udfff]")  # half a character, as JSON may have it, is in no text
_PARTS = re.compile(rb"((?:.*/)?[^/.]+)\.([^/]+)", re.DOTALL)


class Sample(NamedTuple):
    """A sample in a tar: its picture's name and place, its label ("" for none) and the suffix that gave it.

    `values` are what its json has in the columns that were asked for, None for nothing.
    """

    name: bytes
    place: int
    size: int
    label: str
    label_from: str
    problem: str
    values: Sequence[Any] = ()


def read_samples(
    members: Iterable[Member], read: Callable[[Member], bytes], columns: Sequence[str] = ()
) -> Iterator[Sample]:
    """The samples that members of a tar make, in their order; `read` gives a member's bytes.

    It is called for a member before the next is asked for, so a stream need not go back.
    """
    parts = ((match[1], match[2].lower(), member) for member in members if (match := _PARTS.fullmatch(member.name)))
    for _, sample in groupby(parts, itemgetter(0)):
        yield _sample(((suffix, member) for _, suffix, member in sample), read, columns)


def _sample(parts: Iterator[tuple[bytes, Member]], read: Callable[[Member], bytes], columns: Sequence[str]) -> Sample:
    first: Member | None = None
    picture: tuple[int, Member] | None = None
    label, rank, twice, fields = "", len(LABELS), False, dict[str, Any]()
    for suffix, member in parts:
        first = first or member
        if suffix in IMAGE_SUFFIXES:
            this = (IMAGE_SUFFIXES.index(suffix), member)
            twice |= picture is not None and picture[0] == this[0]
            picture = min(picture or this, this)
        elif suffix in LABELS and 0 < member.size <= MAX_LABEL_BYTES:
            is_label, is_fields = suffix in LABELS[:rank], suffix == b"json" and columns
            data = read(member) if is_label or is_fields else b""
            if is_label:
                rank, label = LABELS.index(suffix), _label(suffix, data)
            if is_fields:
                fields = _fields(data)
    assert first is not None
    shown = picture[1] if picture else first
    problem = "two pictures in the sample" if twice else shown.problem
    if picture is None:
        problem = "no jpg, jpeg or png in the sample"
    label_from = LABELS[rank].decode() if label else ""
    values = [fields.get(column) for column in columns]
    return Sample(shown.name, shown.place, shown.size, label, label_from, problem, values)


def _label(suffix: bytes, data: bytes) -> str:
    if suffix != b"json":
        return name_text(data).strip()
    facts = _fields(data)
    found = [facts[key] for key in LABEL_KEYS if key in facts]
    label = str(found[0]) if found and isinstance(found[0], (int, str)) and not isinstance(found[0], bool) else ""
    return "" if _LONE.search(label) else label


def _fields(data: bytes) -> dict[str, Any]:
    """What a sample's json holds; nothing if it is no object."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


class SampleIndex:
    """The samples of all shards, 28 bytes, a name and values each: labels have numbers only when all are known."""

    def __init__(self, columns: Sequence[NumberColumn] = ()) -> None:
        self._values = columns
        self.labels: dict[str, tuple[int, bytes]] = {}  # with the shard and the sample that first had each
        self._numbers: dict[str, int] = {"": -1}
        self._columns: tuple[array[int], ...] = tuple(array(code) for code in "iqqii")
        self._names = bytearray()
        self._problems: dict[int, str] = {}

    def add(self, shard: int, sample: Sample, path: str = "") -> None:
        """Take a sample of a shard, whose path errors name."""
        number = self._numbers.setdefault(sample.label, len(self.labels))
        if number == len(self.labels):
            self.labels[sample.label] = (shard, sample.name)
        if sample.problem:
            self._problems[len(self._columns[0])] = sample.problem
        elif sample.label:
            where = f"{path}: {name_text(sample.name)}"
            for numbers, found in zip(self._values, sample.values, strict=True):
                if found is None:
                    expected = (
                        f"expected a json of at most {MAX_LABEL_BYTES} bytes, an object with the key {numbers.name!r}"
                    )
                    raise BuildError(f"{where}: column {numbers.name!r}: found nothing, {expected}")
                numbers.append(numbers.check(found, where))
        facts = (shard, sample.place, sample.size, number, len(sample.name))
        for column, fact in zip(self._columns, facts, strict=True):
            column.append(fact)
        self._names += sample.name

    def __iter__(self) -> Iterator[tuple[int, Sample]]:
        labels, end, sound = [*self.labels, ""], 0, 0
        for at, (shard, place, size, number, length) in enumerate(zip(*self._columns, strict=True)):
            end += length
            name = bytes(self._names[end - length : end])
            problem = self._problems.get(at, "")
            has_values = number >= 0 and not problem
            values = [numbers[sound] for numbers in self._values] if has_values else []
            sound += has_values
            yield shard, Sample(name, place, size, labels[number], "", problem, values)
