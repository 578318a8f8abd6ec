"""WebDataset samples: consecutive members of a tar whose names are equal up to the first dot."""

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
LABELS = (b"cls", b"txt", b"json")  # the first one that a sample has gives its label
LABEL_KEYS = ("label", "cls", "class")
MAX_LABEL_BYTES = 1 << 16
_LONE = re.compile("[\ud800-\udfff]")  # lone surrogates: JSON can contain them, valid text cannot
_PARTS = re.compile(rb"((?:.*/)?[^/.]+)\.([^/]+)", re.DOTALL)


class Sample(NamedTuple):
    """A sample in a tar: name, offset and size in bytes of its image, and its label ("" for none).

    `label_from` is the suffix of the file with the label. `values` has a value for each requested column, None for
    a missing one.
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
    """Group the members of a tar into samples, in their order.

    `read` returns the bytes of a member. It is called before the next member is requested, so a stream is only read
    forward.
    """
    parts = ((match[1], match[2].lower(), member) for member in members if (match := _PARTS.fullmatch(member.name)))
    for _, sample in groupby(parts, itemgetter(0)):
        yield _sample(((suffix, member) for _, suffix, member in sample), read, columns)


def _sample(parts: Iterator[tuple[bytes, Member]], read: Callable[[Member], bytes], columns: Sequence[str]) -> Sample:
    first: Member | None = None
    image: tuple[int, Member] | None = None
    label, rank, duplicate, fields = "", len(LABELS), False, dict[str, Any]()
    for suffix, member in parts:
        first = first or member
        if suffix in IMAGE_SUFFIXES:
            this = (IMAGE_SUFFIXES.index(suffix), member)
            duplicate |= image is not None and image[0] == this[0]
            image = min(image or this, this)
        elif suffix in LABELS and 0 < member.size <= MAX_LABEL_BYTES:
            is_label, is_fields = suffix in LABELS[:rank], suffix == b"json" and columns
            data = read(member) if is_label or is_fields else b""
            if is_label:
                rank, label = LABELS.index(suffix), _label(suffix, data)
            if is_fields:
                fields = _fields(data)
    assert first is not None
    main = image[1] if image else first
    problem = "two images in the sample" if duplicate else main.problem
    if image is None:
        problem = "no jpg, jpeg or png in the sample"
    label_from = LABELS[rank].decode() if label else ""
    values = [fields.get(column) for column in columns]
    return Sample(main.name, main.place, main.size, label, label_from, problem, values)


def _label(suffix: bytes, data: bytes) -> str:
    if suffix != b"json":
        return name_text(data).strip()
    facts = _fields(data)
    found = [facts[key] for key in LABEL_KEYS if key in facts]
    label = str(found[0]) if found and isinstance(found[0], (int, str)) and not isinstance(found[0], bool) else ""
    return "" if _LONE.search(label) else label


def _fields(data: bytes) -> dict[str, Any]:
    """Return the object in a sample's json; {} if it is not an object."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


class SampleIndex:
    """Holds the samples of all shards until every label is known. A sample takes 28 bytes, its name and its values."""

    def __init__(self, columns: Sequence[NumberColumn] = ()) -> None:
        self._values = columns
        self.labels: dict[str, tuple[int, bytes]] = {}  # with the first shard and sample of each
        self._numbers: dict[str, int] = {"": -1}
        self._columns: tuple[array[int], ...] = tuple(array(code) for code in "iqqii")
        self._names = bytearray()
        self._problems: dict[int, str] = {}

    def add(self, shard: int, sample: Sample, path: str = "") -> None:
        """Add a sample of a shard. `path` names the shard in messages."""
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
                        f"expected a json object of at most {MAX_LABEL_BYTES} bytes with the key {numbers.name!r}"
                    )
                    raise BuildError(f"{where}: column {numbers.name!r}: found nothing, {expected}")
                numbers.append(numbers.check(found, where))
        facts = (shard, sample.place, sample.size, number, len(sample.name))
        for column, fact in zip(self._columns, facts, strict=True):
            column.append(fact)
        self._names += sample.name

    def __iter__(self) -> Iterator[tuple[int, Sample]]:
        labels, end, index = [*self.labels, ""], 0, 0
        for at, (shard, place, size, number, length) in enumerate(zip(*self._columns, strict=True)):
            end += length
            name = bytes(self._names[end - length : end])
            problem = self._problems.get(at, "")
            has_values = number >= 0 and not problem
            values = [numbers[index] for numbers in self._values] if has_values else []
            index += has_values
            yield shard, Sample(name, place, size, labels[number], "", problem, values)
