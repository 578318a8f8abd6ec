"""Labels that are stored as text in the data, and how they become class numbers."""

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

MAX_NUMBERS = 1 << 20  # a larger label is probably an id; every number below it would become a class
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class LabelledSource(Source):
    """Base of sources that learn their classes from labels in the data.

    `entries` of a subclass must call `_learn` with all labels before it yields, and `_class_of` for each sample.

    Args:
        root: The folder or file that entry names are relative to.
        classes: Class names in label order, or None to number the labels that are found.
        column: Names of columns of numbers to read next to the labels, or None.
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
        if self._names is None:
            next(self.entries(), None)
        return tuple(map(ImageClass, self._names or ()))

    def doubts(self, samples: int) -> list[str]:
        names, used = self._names or [], {number for number in self._numbers.values() if number >= 0}
        unused = sorted(set(range(len(names))) - used) if used else []
        warnings = []
        if unused:
            first = unused[0]
            warnings.append(f"{len(unused)} of {len(names)} classes have no images (first {first}, {names[first]!r})")
        if self._given is None and len(used) > max(samples // 2, 1):
            warnings.append(f"{len(used)} different labels for {samples} samples; check that the labels are classes")
        return warnings

    def _learn(self, seen: Mapping[str, object], *, numbered: bool = True) -> None:
        self._names, self._numbers = class_numbers(seen, self._given, numbered=numbered)

    def _class_of(self, label: str | None) -> tuple[int, str]:
        """Return the class number of a label and "", or 0 and the problem of a label without a class."""
        if not label:
            return 0, "no label"
        number = self._numbers[label]
        return (number, "") if number >= 0 else (0, f"label {label}, expected 0 or more")

    def _checked(self, values: Iterable[object], where: str) -> tuple[Value, ...]:
        """Return the values of a sample for all columns; raise BuildError, starting with `where`, if one is invalid."""
        columns = zip(self._number_columns, values, strict=True)
        return tuple(column.check(value, where) for column, value in columns)


def class_numbers(
    seen: Mapping[str, object], given: Sequence[str] | None, *, numbered: bool = True
) -> tuple[list[str], dict[str, int]]:
    """Return the names of the classes, and the class number of each label.

    If all labels are whole numbers, they are the class numbers; a negative one has no class. Otherwise they are names,
    in the order of `given`, or sorted by their bytes.

    Args:
        seen: Each label, with the place where it was seen first, for messages.
        given: Class names in label order, or None.
        numbered: Whether whole numbers are class numbers; default True. If False, all labels are names.

    Raises:
        BuildError: If `given` lacks a label. Without `given`, if only some labels are whole numbers: a single caption
            among numbers would otherwise renumber all classes.
    """
    texts = [label for label in seen if not numbered or not _NUMBER.fullmatch(label)]
    if not texts:
        return _numbers(seen, given)
    if numbered and given is None and len(texts) < len(seen):
        raise BuildError(
            f"{seen[texts[0]]}: label {texts[0]!r:.80} is not a whole number, but {len(seen) - len(texts)} of "
            f"{len(seen)} different labels are; correct it, or list all class names with --classes FILE"
        )
    names = sorted(seen, key=name_bytes) if given is None else list(given)
    numbers = {name: number for number, name in enumerate(names)}
    check_no_duplicates(given or ())
    for label, where in seen.items():
        if label not in numbers:
            origin = ClassList(given or ()).origin
            raise BuildError(f"{where}: class {label!r} is not in {origin}; add it there, or omit --classes")
    return names, {label: numbers[label] for label in seen}


def _numbers(seen: Mapping[str, object], given: Sequence[str] | None) -> tuple[list[str], dict[str, int]]:
    numbers = {label: int(label) for label in seen}
    top = max(seen, key=numbers.__getitem__, default="-1")
    count = MAX_NUMBERS if given is None else len(given)
    if numbers.get(top, -1) >= count:
        advice = "class numbers start at 0"
        if given is not None:
            advice = f"{ClassList(given).origin} has {count} names, expected one for each class"
        raise BuildError(f"{seen[top]}: label {top}, expected 0 to {count - 1}; {advice}")
    return (list(given) if given is not None else [str(n) for n in range(numbers.get(top, -1) + 1)]), numbers


def labels_by_word(classes: Sequence[ImageClass]) -> dict[str, int]:
    """Return the label of every casefolded word that is in the description of exactly one class."""
    words = [{word.strip().casefold() for word in cls.description.split(",")} for cls in classes]
    times = Counter(word for some in words for word in some)
    return {word: label for label, some in enumerate(words) for word in some if times[word] == 1}
