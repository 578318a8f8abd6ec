"""Which class has which label: the same in train and val, and never other labels without a word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.sources.folder import check_classes
from decodeonce.prep.sources.imagenet.synsets import Synsets

ADVICE = "--classes FILE says which class has which label"


@dataclass(frozen=True)
class ClassOrder:
    """The classes in label order, what people call them, and what is doubtful about them, a sentence each."""

    names: list[str]
    words: dict[str, str]
    doubts: list[str]


def class_order(
    top: Path,
    present: Sequence[str],
    *,
    train: Sequence[str] | None = None,
    listed: Synsets | None = None,
    given: Sequence[str] | None = None,
    is_val: bool = False,
) -> ClassOrder:
    """Labels for the classes that are `present` in `top`, which train has, and which a list of classes names.

    `given` decides. Else labels follow the sorted classes of train, as in torchvision, for val, too; for val without a
    train they follow the list, else the sorted classes that are here. BuildError where val has a class that gets none.
    """
    names, owner, where = present, "", "here"
    if given is not None:
        names = given
    elif is_val and train is not None:
        names, owner, where = train, "train", "in train"
    elif is_val and listed is not None:
        names, owner = sorted(listed.words, key=name_bytes), listed.origin
    check_classes(top, names, present if given is not None else [])
    if strangers := _missing(present, names):
        more = ", ..." if len(strangers) > 3 else ""
        raise BuildError(
            f"{top}: val has {len(strangers)} classes that {owner} lacks ({', '.join(strangers[:3])}{more}); {ADVICE}"
        )
    doubts = []
    lost = _missing(names, present)
    if owner == "train" and lost:
        doubts.append(
            f"val has {len(names) - len(lost)} of the {len(names)} classes of train (first missing {lost[0]})"
        )
    if given is None and listed is not None:
        known = names if owner == "train" else present
        follow = owner if owner == listed.origin else f"the {len(known)} that are {where}; {ADVICE}"
        doubts += _compare(known, where, listed, follow)
    words = {} if listed is None else {name: listed.words[name] for name in names if name in listed.words}
    return ClassOrder(list(names), words, doubts)


def _compare(known: Sequence[str], where: str, listed: Synsets, follow: str) -> list[str]:
    """Half a dataset, or one with a folder too many: labels are not those of the whole one."""
    if strangers := _missing(known, listed.words):
        what = f"{len(strangers)} classes {where} are not in {listed.origin} (first {strangers[0]})"
    elif lost := _missing(sorted(listed.words, key=name_bytes), known):
        total = len(listed.words)
        what = f"{len(known)} of {total} classes of {listed.origin} are {where} (first missing {lost[0]})"
    else:
        return []
    return [f"{what}; labels follow {follow}"]


def _missing(names: Iterable[str], of: Iterable[str]) -> list[str]:
    """Those names that the others lack."""
    others = set(of)
    return [name for name in names if name not in others]
