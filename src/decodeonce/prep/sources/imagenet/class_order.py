"""The label order of classes: the same in train and val, with a warning if it is not that of the whole dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.sources.folder import check_classes
from decodeonce.prep.sources.imagenet.synsets import Synsets

ADVICE = "pass --classes FILE to define the label order"


@dataclass(frozen=True)
class ClassOrder:
    """The classes in label order, their descriptions by name, and warnings, one sentence each."""

    names: list[str]
    words: dict[str, str]
    warnings: list[str]


def class_order(
    top: Path,
    present: Sequence[str],
    *,
    train: Sequence[str] | None = None,
    listed: Synsets | None = None,
    given: Sequence[str] | None = None,
    is_val: bool = False,
) -> ClassOrder:
    """Return the classes of a split in label order.

    The order is the first of these that is available: `given`; for val, the classes of train, sorted as in torchvision;
    for val, the classes of the list, sorted; the classes that are present, sorted.

    Args:
        top: The split, for messages.
        present: The classes that its images have, sorted.
        train: The classes of train, sorted, or None.
        listed: A list of all classes, or None.
        given: Class names in label order from the user, or None.
        is_val: Whether this is the val split.

    Raises:
        BuildError: If the split has a class without a label, or `given` is invalid.
    """
    names, owner, where = present, "", "present"
    if given is not None:
        names = given
    elif is_val and train is not None:
        names, owner, where = train, "train", "in train"
    elif is_val and listed is not None:
        names, owner = sorted(listed.words, key=name_bytes), listed.origin
    check_classes(top, names, present if given is not None else [])
    if unknown := _not_in(names, present):
        more = ", ..." if len(unknown) > 3 else ""
        raise BuildError(
            f"{top}: val has {len(unknown)} classes that {owner} lacks ({', '.join(unknown[:3])}{more}); {ADVICE}"
        )
    warnings = []
    missing = _not_in(present, names)
    if owner == "train" and missing:
        warnings.append(
            f"val has {len(names) - len(missing)} of the {len(names)} classes of train (first missing {missing[0]})"
        )
    if given is None and listed is not None:
        known = names if owner == "train" else present
        follow = owner if owner == listed.origin else f"the {len(known)} classes {where}; {ADVICE}"
        warnings += _compare(known, where, listed, follow)
    words = {} if listed is None else {name: listed.words[name] for name in names if name in listed.words}
    return ClassOrder(list(names), words, warnings)


def _compare(known: Sequence[str], where: str, listed: Synsets, follow: str) -> list[str]:
    """Return a warning if the classes and the list differ: labels then are not those of the whole dataset."""
    if unknown := _not_in(listed.words, known):
        what = f"{len(unknown)} classes {where} are not in {listed.origin} (first {unknown[0]})"
    elif missing := _not_in(known, sorted(listed.words, key=name_bytes)):
        total = len(listed.words)
        what = f"{len(known)} of {total} classes of {listed.origin} are {where} (first missing {missing[0]})"
    else:
        return []
    return [f"{what}; labels follow {follow}"]


def _not_in(known: Iterable[str], names: Iterable[str]) -> list[str]:
    known = set(known)
    return [name for name in names if name not in known]
