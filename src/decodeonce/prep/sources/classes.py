"""Lists of class names in label order, for every kind of source."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.listing import name_bytes
from decodeonce.prep.sources.files import NO_SAMPLES, read_small

ADD_CLASS = "add it at the end, and build all stores that use this list again"


class ClassList(list[str]):
    """Class names in label order. `origin` names their file in messages; default "the class list"."""

    def __init__(self, names: Iterable[str], origin: str | None = None) -> None:
        super().__init__(names)
        self.origin = origin or getattr(names, "origin", "the class list")


def read_class_list(path: Path) -> ClassList:
    """Read a file with one class name per line; raise ValueError if it cannot be read, or has no or blank names."""
    try:  # only line ends separate names, which may contain the other characters that splitlines() splits at
        lines = [line.strip() for line in io.StringIO(read_small(path).decode("utf-8-sig"), newline=None)]
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ValueError(f"--classes {path}: {found}; expected a file with one class name per line") from None
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise ValueError(f"--classes {path}: contains no class names; expected one per line")
    if "" in lines:  # it may be the place of a name, and all later names would get another label
        number = lines.index("") + 1
        raise ValueError(f"--classes {path}: line {number} is blank; write its class there, or remove the line")
    for number, line in enumerate(lines, 1):
        if line[0] in "\"'" and line.rstrip(",")[1:].endswith(line[0]):
            advice = "write the names without quotation marks, one per line"
            raise ValueError(f"--classes {path}: line {number}: {line} is in quotation marks; {advice}")
    return ClassList(lines, str(path))


def numbered_name(lines: Sequence[str]) -> str | None:
    """Return the first name if all lines are a name and a number, as in `0 cat` or `cat 0`; None otherwise.

    The numbers count from 0 or 1, and the names differ, unlike those of `class 1` and `class 2`.
    """
    for form in (r"(?P<number>\d{1,9})[\s,:]+(?P<name>[\w/].*)", r"(?P<name>[\w/].*)[\s,:]+(?P<number>\d{1,9})"):
        found = [match for line in lines if (match := re.fullmatch(form, line))]
        numbers = sorted(int(match["number"]) for match in found)
        names = {match["name"] for match in found}
        if len(names) == len(lines) > 1 and numbers in (list(range(len(lines))), list(range(1, len(lines) + 1))):
            return found[0]["name"]
    return None


def check_no_duplicates(names: Sequence[str]) -> None:
    """Raise BuildError if a list of class names has a name twice.

    Example:
        >>> try:
        ...     check_no_duplicates(["cat", "dog", "cat"])
        ... except BuildError as error:
        ...     print(error)
        the class list contains 'cat' twice; list each class once
    """
    name, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise BuildError(f"{ClassList(names).origin} contains {name!r} twice; list each class once")


def check_classes(top: Path, names: Sequence[str], present: Sequence[str]) -> None:
    """Raise BuildError if a class list is invalid or lacks one of the class folders of `top` that are `present`."""
    origin = ClassList(names).origin
    check_no_duplicates(names)
    outside = [name for name in names if not name or NO_SAMPLES.fullmatch(name_bytes(name)) or {*name} & {*"/\0"}]
    if outside:
        advice = "remove it there, and build again with it"
        raise BuildError(f"{origin} contains {outside[0]!r}, which is not a class; {advice}")
    unlisted = sorted(set(present) - set(names))
    if unlisted:
        advice = ADD_CLASS
        if (name := unlisted[0]) != name.strip():
            advice = "a list has no names with blanks around them, so rename the folder"
        elif set(present).isdisjoint(names):
            advice = "nor is any other; write the names of the folders there, in the order of the labels"
            if len(present) == 1:
                advice = "nor is any other, so it is probably no class; run prep build list with a table of labels"
        raise BuildError(f"{top / unlisted[0]}: this class folder is not in {origin}; {advice}")


def unused_classes(names: Sequence[str], used: Collection[int]) -> list[str]:
    """Return a warning if some classes, but not all of them, are missing in the class numbers `used`."""
    unused = [number for number in range(len(names)) if number not in used]
    if not unused or not used:
        return []
    first, are_numbers = unused[0], list(names) == list(map(str, range(len(names))))
    advice = "; if labels count from 1, subtract 1" if unused == [0] and are_numbers else ""
    return [f"{len(unused)} of {len(names)} classes have no images (first {first}, {names[first]!r}){advice}"]


def sorted_as_text(names: Sequence[str]) -> int | None:
    """Return the first label whose class would be another if names were sorted by their numbers, as 10 before 2."""
    if len({re.sub("[0-9]+", "0", name) for name in names}) != 1:
        return None
    by_value = sorted(names, key=lambda name: [int(digits) for digits in re.findall("[0-9]+", name)])
    return next((label for label, name in enumerate(names) if name != by_value[label]), None)


def alike_classes(names: Sequence[str]) -> list[str]:
    """Return a warning if two classes have names that differ only in case, or in blanks around them."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(name.casefold().strip(), name)) != name:
            return [f"the classes {other!r} and {name!r} differ only in case or blanks"]
    return []
