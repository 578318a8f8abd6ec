"""Labels that stand in the data, as text, and the class numbers that they become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.entry import Value, name_bytes
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.folder import ClassList, check_no_duplicates
from decodeonce.prep.sources.formats.numbers import number_columns
from decodeonce.store.manifest import ImageClass

MAX_NUMBERS = 1 << 20  # larger labels are somebody's ids, and every number below would be a class
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class LabelledSource(Source):
    """A source whose classes are known after a pass over its labels, which entries() does before it yields.

    `column` are the names of the columns of numbers that it is to take from where the labels are.
    """

    def __init__(self, root: Path, classes: Sequence[str] | None, column: Sequence[str] | None) -> None:
        super().__init__(root)
        self.column_names = tuple(column or ())
        self._number_columns = number_columns(self.column_names)
        self._requested = ClassList(classes) if classes is not None else None
        self._given: list[str] | None = self._requested
        self._names: list[str] | None = self._requested
        self._numbers: dict[str, int] = {}

    def classes(self) -> tuple[ImageClass, ...]:
        """The classes in label order."""
        if self._names is None:
            next(self.entries(), None)
        return tuple(map(ImageClass, self._names or ()))

    def doubts(self, samples: int) -> list[str]:
        """Classes that no label names, and labels of which nearly every sample has one of its own."""
        names, used = self._names or [], {number for number in self._numbers.values() if number >= 0}
        unused = sorted(set(range(len(names))) - used) if used else []
        doubts = []
        if unused:
            first = unused[0]
            doubts.append(
                f"{len(unused)} of {len(names)} classes have no picture; the first is {first}, {names[first]!r}"
            )
        if self._given is None and len(used) > max(samples // 2, 1):
            doubts.append(f"{len(used)} different labels on {samples} samples: are they classes?")
        return doubts

    def _learn(self, seen: Mapping[str, object], *, numbered: bool = True) -> None:
        self._names, self._numbers = class_numbers(seen, self._given, numbered=numbered)

    def _class_of(self, label: str | None) -> tuple[int, str]:
        """The class number of a label, and what is wrong where it has none."""
        if not label:
            return 0, "no label"
        number = self._numbers[label]
        return (number, "") if number >= 0 else (0, f"label {label}, expected 0 or more")

    def _checked(self, values: Iterable[object], where: str) -> tuple[Value, ...]:
        """What a sample has in each column; BuildError, which begins with `where`, if that is none of its values."""
        columns = zip(self._number_columns, values, strict=True)
        return tuple(column.check(value, where) for column, value in columns)


def class_numbers(
    seen: Mapping[str, object], given: Sequence[str] | None, *, numbered: bool = True
) -> tuple[list[str], dict[str, int]]:
    """The names of the classes, and the class number of each label in `seen`, which says where it was seen first.

    Where all labels are whole numbers they are the class numbers; below 0 is no class's. Else they are names, sorted by
    their bytes or in the order of `given`; BuildError where `given` lacks one, and without it where only some are whole
    numbers: one caption among them would give every class another number. `numbered=False`: they are names anyway.
    """
    texts = [label for label in seen if not numbered or not _NUMBER.fullmatch(label)]
    if not texts:
        return _numbers(seen, given)
    if numbered and given is None and len(texts) < len(seen):
        raise BuildError(
            f"{seen[texts[0]]}: label {texts[0]!r:.80}, while {len(seen) - len(texts)} of {len(seen)} different labels "
            "are whole numbers; mend it, or name all classes with --classes FILE"
        )
    names = sorted(seen, key=name_bytes) if given is None else list(given)
    numbers = {name: number for number, name in enumerate(names)}
    check_no_duplicates(given or ())
    for label, where in seen.items():
        if label not in numbers:
            origin = ClassList(given or ()).origin
            raise BuildError(f"{where}: class {label!r} is not in {origin}; add it there, or leave --classes out")
    return names, {label: numbers[label] for label in seen}


def _numbers(seen: Mapping[str, object], given: Sequence[str] | None) -> tuple[list[str], dict[str, int]]:
    numbers = {label: int(label) for label in seen}
    top = max(seen, key=numbers.__getitem__, default="-1")
    count = MAX_NUMBERS if given is None else len(given)
    if numbers.get(top, -1) >= count:
        cure = "class numbers begin at 0"
        if given is not None:
            cure = f"{ClassList(given).origin} has {count} names, expected one for each class"
        raise BuildError(f"{seen[top]}: label {top}, expected 0 to {count - 1}; {cure}")
    return (list(given) if given is not None else [str(n) for n in range(numbers.get(top, -1) + 1)]), numbers


def labels_by_word(classes: Sequence[ImageClass]) -> dict[str, int]:
    """The label of every word, casefolded, that stands in the description of one class alone."""
    words = [{word.strip().casefold() for word in cls.description.split(",")} for cls in classes]
    times = Counter(word for some in words for word in some)
    return {word: label for label, some in enumerate(words) for word in some if times[word] == 1}
