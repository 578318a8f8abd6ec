"""Labels and numbers that are stored in the data: how labels become class numbers, and numbers become columns."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.prep.listing import MULTI_LABEL, Entry, NumberColumn, Scan, Value, name_bytes
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.class_folders import train_next_to
from decodeonce.prep.sources.classes import (
    ADD_CLASS,
    ClassList,
    alike_classes,
    check_no_duplicates,
    numbered_name,
    unused_classes,
)
from decodeonce.store.columns import column_file
from decodeonce.store.layout import Json
from decodeonce.store.manifest import ImageClass

UNLABELED = "unlabeled"  # the class of images without labels
NoLabels = Annotated[bool, "Ignore labels: all images get the label 0."]  # the flag of every kind that has it
KeptColumns = Annotated[  # the flag of kinds that find columns by name
    list[str] | None, "Keep this column (WebDataset: json key) of numbers. Repeat the flag for more columns.", "NAME"
]
LABEL_COLUMNS = ("label", "labels", "class", "cls", "class_name", "class_id", "target", "category")
MAX_NUMBERS = 1 << 20  # a larger label is probably an id; every number below it would become a class
NEGATIVE = "label {}, expected 0 or more"
MISSING_LABELS = {"nan", "NaN", "None", "null", "NULL", "NA", "<NA>", "N/A", "n/a", "#N/A"}  # pandas reads these as NaN
_KEEP = "pass --no-labels and keep them with --column NAME, in a column of numbers that is not called labels"
_OF_STORE = (
    "run: python -c \"print(*__import__('decodeonce').open_store('STORE').classes, sep='\\n')\" > "
    "classes.txt, where STORE is its store, and pass --classes classes.txt"
)
NOT_FINITE = {"nan", "inf", "infinity"}  # as NumPy and pandas write them; JSON spells them differently
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"[^\s,;|/&+]+")  # one of several labels of an image
_SEVERAL = re.compile(r"[;|]|^\d+(?:[\s,]+\d+)+$")  # names of classes rarely have these
_PADDED = re.compile("0[0-9]")
_WHOLE = re.compile(r"(-?[0-9]{1,18})(?:\.0*)?")  # pandas writes 5.0 if another label of the table is missing


class LabeledSource(Source):
    """Base of sources whose classes are given, or follow from labels in the data.

    `scan` of a subclass must call `_learn` with all labels, then return `_scanned` with the entries, whose labels come
    from `_class_of`. If labels are the names of folders, it sets `_names` instead.

    Args:
        root: The folder or file that entry names are relative to.
        classes: Class names in label order, or None to number the labels that are found.
        column: Names of columns of numbers to read next to the labels, or None.
        no_labels: Whether to ignore labels: all samples are of one class; default False.

    Raises:
        BuildError: If there are both `classes` and `no_labels`, or a name of a column is invalid.
    """

    label_advice: ClassVar = ""  # how to choose other labels
    are_texts = False  # whether a label is a text, which may be a name that looks like a number

    def __init__(
        self, root: Path, classes: Sequence[str] | None, column: Sequence[str] | None, *, no_labels: bool = False
    ) -> None:
        super().__init__(root)
        check_unlabeled(no_labels, classes=classes)
        self.no_labels = no_labels
        self.column_names = tuple(column or ())
        self._number_columns = number_columns(self.column_names)
        self._requested = ClassList(classes) if classes is not None else None
        self._given: list[str] | None = self._requested
        self._names: list[str] | None = [UNLABELED] if no_labels else self._requested
        self._numbers: dict[str, int] = {}
        self._keeps_labels = False  # whether the labels are in one of the columns, too
        self._left: list[str] = []  # the names of the columns that are not read, for sources with columns
        self._used = set[int]()  # the labels of samples without a problem in the last listing

    def arguments(self) -> Json:
        return {"no_labels": True} if self.no_labels else {"classes": self._names}

    def options(self) -> Json:
        return {"no_labels": True} if self.no_labels else {}

    def _scanned(self, entries: Iterable[Entry]) -> Scan:
        """Return the scan with these entries, and with the classes that were learned."""
        self._used = set()
        return Scan(map(self._noted, entries), tuple(map(ImageClass, self._names or ())), self._warnings)

    def _noted(self, entry: Entry) -> Entry:
        if not entry.problem:
            self._used.add(entry.label)
        return entry

    def _warnings(self, samples: int) -> list[str]:
        names, used = self._names or [], self._used
        warnings = [*unused_classes(names, used), *alike_classes(names)]
        if self._keeps_labels and self.no_labels:
            warnings.append("the labels are numbers to predict, which the column keeps; all images get the label 0")
        if self._given is None and samples and len(used) > max(samples // 2, 1):
            many = f"{len(used)} different labels for {counted(samples, 'sample')}"
            warnings.append(f"{many}; check that the labels are classes{self.label_advice}")
        are_names = not self.no_labels and names != [str(number) for number in range(len(names))]
        if self._given is None and are_names and (train := train_next_to(self.top)):
            what = f"the classes are the {len(names)} labels that were found, so labels differ if {train} has others"
            warnings.append(f"{what}; pass the --classes of the build of train; if it had none, {_OF_STORE}")
        padded = [label for label in self._numbers if _PADDED.match(label)]
        if padded and self.are_texts and self._given is None and not are_names:
            what = f"labels such as {padded[0]!r} are class numbers, here {self._numbers[padded[0]]}"
            warnings.append(f"{what}; if they are names, pass them all, with their zeros, as --classes FILE")
        if self._given is None and (missing := [name for name in names if name in MISSING_LABELS]):
            what = f"{missing[0]!r} is a class, and may stand for a missing label"
            warnings.append(f"{what}; if so, leave the label empty, which rejects the image, or remove the image")
        if self._given is None and (several := _several_labels(names)):
            what = "look like several labels of one image, and each is a class of its own"
            advice = f"if so, write a table with a column of zeros and ones, as {MULTI_LABEL} says"
            warnings.append(f"labels such as {several!r:.80} {what}; {advice}, and build from it with --no-labels")
        if self._given and not {*self._numbers} <= {*self._given} and (name := numbered_name(self._given)) is not None:
            found = f"each line of {ClassList(self._given).origin} has a number before or after a name"
            warnings.append(f"{found}; if classes have no numbers, write only names, such as {name!r}, in label order")
        if self._left:
            left = ", ".join(name or "one without a name" for name in self._left)
            warnings.append(f"columns that are not kept: {left:.200}; --column NAME keeps a column of numbers")
        return warnings

    def _learn(self, seen: Mapping[str, object], *, numbered: bool = True) -> None:
        """Set the classes, and the class number of each label.

        If all labels are whole numbers, they are the class numbers; a negative one has no class. Otherwise they are
        names, in the order of the given classes, or sorted by their bytes. Without given classes, other numbers are
        refused: they would become names, and 10.5 would come before 2.5. If a column keeps such numbers, or lists, all
        labels are ignored.

        Args:
            seen: Each label, with the place where it was seen first, for messages.
            numbered: Whether whole numbers are class numbers; default True. If False, all labels are names.

        Raises:
            BuildError: If the given classes lack a label. Without given classes, if only some labels are whole numbers:
                a single caption among numbers would otherwise renumber all classes.
        """
        if self.no_labels:
            return
        by_name = self.are_texts or any("." in label for label in seen)
        given = self._given is not None and set(seen) <= set(self._given) and by_name
        texts = [label for label in seen if given or not numbered or not _WHOLE.fullmatch(label)]
        if not texts:
            self._learn_numbers({label: int(label.partition(".")[0]) for label in seen}, seen)
            return
        if numbered and self._given is None and self._keeps_labels and all(map(_is_to_predict, seen)):
            self.no_labels, self._names = True, [UNLABELED]
            return
        if self._given is None and all(label.startswith("[") for label in seen):
            raise BuildError(
                f"{seen[texts[0]]}: label {texts[0]!r:.80} is a list; to predict several labels for each image, "
                f"{_KEEP}; if they are words, see {MULTI_LABEL} first"
            )
        if numbered and self._given is None and _are_fractions(seen):
            raise BuildError(
                f"{seen[texts[0]]}: label {texts[0]} is not a whole number; to predict such numbers, {_KEEP}; to "
                "classify them, list all as class names with --classes FILE"
            )
        if numbered and self._given is None and len(texts) < len(seen):
            several = _several_labels(list(seen))
            advice = f"if {several!r:.80} is several labels, see {MULTI_LABEL}; otherwise " if several else ""
            raise BuildError(
                f"{seen[texts[0]]}: label {texts[0]!r:.80} is not a whole number, but {len(seen) - len(texts)} of "
                f"{len(seen)} different labels are; {advice}correct it, or list all class names with --classes FILE"
            )
        check_no_duplicates(self._given or ())
        names = sorted(seen, key=name_bytes) if self._given is None else list(self._given)
        numbers = {name: number for number, name in enumerate(names)}
        for label, where in seen.items():
            if label not in numbers:
                origin = ClassList(self._given or ()).origin
                raise BuildError(f"{where}: class {label!r} is not in {origin}; {ADD_CLASS}")
        self._names, self._numbers = names, {label: numbers[label] for label in seen}

    def _refuse_other_numbers(
        self, given: Sequence[str], numbers: Mapping[str, int], seen: Mapping[str, object]
    ) -> None:
        """Raise BuildError if labels are numbers, and some are names of classes with other numbers."""
        whole = enumerate(map(_WHOLE.fullmatch, given))
        by_value = {int(found[1]): number for number, found in whole if found}  # the label 1.0 is the name "1"
        if others := [label for label, value in numbers.items() if by_value.get(value, value) != value]:
            missing = next(label for label in seen if label not in given)
            number = by_value[numbers[others[0]]]
            raise BuildError(
                f"{seen[missing]}: label {missing} is not in {ClassList(given).origin}, but label {given[number]} is, "
                f"as class {number}; list all labels there, or write class names that are not numbers"
            )

    def _learn_numbers(self, numbers: dict[str, int], seen: Mapping[str, object]) -> None:
        self._numbers = numbers
        if self.are_texts and self._given is not None:
            self._refuse_other_numbers(self._given, numbers, seen)
        largest = max(numbers, key=numbers.__getitem__, default="")
        count = MAX_NUMBERS if self._given is None else len(self._given)
        if (last := numbers.get(largest, -1)) >= count:
            advice = "class numbers start at 0"
            if self._given is not None:
                advice = f"{ClassList(self._given).origin} has {count} names, expected one for each class"
            raise BuildError(f"{seen[largest]}: label {largest}, expected 0 to {count - 1}; {advice}")
        self._names = list(map(str, range(last + 1))) if self._given is None else list(self._given)

    def _class_of(self, label: str | None) -> tuple[int, str]:
        """Return the class number of a label and "", or 0 and the problem of a label without a class."""
        if self.no_labels:
            return 0, ""
        if not label:
            return 0, "no label"
        number = self._numbers[label]
        return (number, "") if number >= 0 else (0, NEGATIVE.format(label))

    def _class_alone(self, label: str, where: str) -> tuple[int | None, str]:
        """Return what `_class_of` will return after `_learn`, whatever the other labels are; None: it depends on them.

        Raises:
            BuildError: If the given classes lack the label.
        """
        given, whole = self._given or [], _WHOLE.fullmatch(label)
        if self.no_labels or not label:
            return self._class_of(label)
        numbers = {given.index(label)} if label in given else set()
        if not numbers and (self._given is not None or (whole and int(whole[1]) >= MAX_NUMBERS)):
            self._learn({label: where})  # raises, unless it is a number of a given class
        if not numbers and whole and int(whole[1]) < 0:
            return 0, NEGATIVE.format(label)
        if whole and 0 <= int(whole[1]) < len(given):
            numbers.add(int(whole[1]))
        return numbers.pop() if len(numbers) == 1 else None, ""

    def _checked(self, values: Iterable[object], where: str) -> tuple[Value, ...]:
        """Return the values of a sample for all columns; raise BuildError, starting with `where`, if one is invalid."""
        columns = zip(self._number_columns, values, strict=True)
        return tuple(column.check(value, where) for column, value in columns)


def may_be_labels(name: str) -> bool:
    """Return whether a column of this name usually has labels, such as "label" or "coarse_label"."""
    return name.lower() in LABEL_COLUMNS or name.lower().endswith("_label")


def _several_labels(names: Sequence[str]) -> str:
    """Return the first name that is probably a list of labels, such as "cat dog" or "cat|dog"; "" for none.

    A list of labels has a character or numbers that names rarely have, or all its words are names, too. Otherwise, half
    of the names of several words must have only words that others have, too, and a third of all words must be first
    here and later there: of the names "polar bear", "brown bear" and "brown dog", each word has its place.
    """
    words_of = {name: _WORD.findall(name) for name in names if name not in MISSING_LABELS}  # such as N/A
    several = {name: words for name, words in words_of.items() if len(words) > 1}
    times = Counter(chain.from_iterable(map(set, words_of.values())))
    movable = {words[0] for words in several.values()} & {word for words in several.values() for word in words[1:]}
    sure = [name for name, words in several.items() if _SEVERAL.search(name) or {*words} <= words_of.keys()]
    shared = (name for name, words in several.items() if all(times[word] > 1 for word in words))
    likely = [name for name in shared if not movable.isdisjoint(several[name])]
    are_lists = 2 * len(likely) >= len(several) and 3 * len(movable) >= len({*chain.from_iterable(several.values())})
    return next(iter(sure or (likely if are_lists else [])), "")


def _are_fractions(labels: Iterable[str]) -> bool:
    """Return whether all labels are numbers, and some of them have a point or an exponent, or are "nan"."""
    return all(map(_NUMBER.fullmatch, labels)) and not all(map(str.isdecimal, labels))


def _is_to_predict(label: str) -> bool:
    """Return whether a label that a column keeps is a number or a list of numbers, as in multi-label classification."""
    return label.startswith("[") or bool(_NUMBER.fullmatch(label))


def number_columns(names: Sequence[str]) -> list[NumberColumn]:
    """Return a column for each name; raise BuildError if a store cannot have columns of these names."""
    for name in names:
        try:
            column_file(name)
        except ValueError as error:
            raise BuildError(f"--column: {error}") from None
        if list(names).count(name) > 1:
            raise BuildError(f"--column {name}: given more than once, expected once")
    return list(map(NumberColumn, names))


def check_unlabeled(no_labels: bool, **given: object) -> None:
    """Raise BuildError if labels are ignored, although one of these arguments describes them."""
    for name, value in given.items():
        if no_labels and value:
            raise BuildError(f"--no-labels ignores labels; omit --{name.replace('_', '-')}")


def parse_value(text: str) -> object:
    """Parse a field of a list: JSON or a word like "nan". Return other text as it is, and None for an empty field."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        word = text.strip()
        return float(word) if word.lower().lstrip("+-") in NOT_FINITE else word or None
