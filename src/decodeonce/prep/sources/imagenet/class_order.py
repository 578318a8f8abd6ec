"""Which class has which label: the same in train and val, and never other labels without a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.sources.folder import check_classes
from decodeonce.prep.sources.imagenet.synsets import Synsets

MENDED = "--classes FILE says which class has which label"


@dataclass(frozen=True)
class ClassOrder:
    """The classes in label order, what people call them, and what is doubtful about them, a sentence each."""

    names: list[str]
    words: dict[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


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
    doubts = []
    if given is not None:
        check_classes(top, given, present)
        return ClassOrder(list(given), _words(given, listed))
    owner, names = "", present
    if is_val and train is not None:
        owner, names = "train", train
    elif is_val and listed is not None:
        owner, names = listed.origin, _by_bytes(listed.words)
    check_classes(top, names, [])
    _refuse_strangers(top, present, names, owner)
    if owner == "train" and (lost := _lacks(present, names)):
        doubts.append(
            f"val has {len(names) - len(lost)} of the {len(names)} classes of train (first missing {lost[0]})"
        )
    doubts += _of_list(names if owner == "train" else present, listed, owner)
    return ClassOrder(list(names), _words(names, listed), tuple(doubts))


def _of_list(present: Sequence[str], listed: Synsets | None, owner: str) -> list[str]:
    """Half a dataset, or one with a folder too many: labels are not those of the whole one."""
    if listed is None:
        return []
    where = "in train" if owner == "train" else "here"
    follow = f"follow {owner}" if owner == listed.origin else f"follow the {len(present)} that are {where}; {MENDED}"
    if strangers := _lacks(_by_bytes(listed.words), present):
        return [f"{len(strangers)} classes {where} are not in {listed.origin} (first {strangers[0]}); labels {follow}"]
    if lost := _lacks(present, _by_bytes(listed.words)):
        return [
            f"{len(present)} of {len(listed.words)} classes of {listed.origin} are {where} (first missing {lost[0]}); "
            f"labels {follow}"
        ]
    return []


def _refuse_strangers(top: Path, present: Sequence[str], names: Sequence[str], owner: str) -> None:
    strangers = _lacks(names, present)
    if strangers:
        more = ", ..." if len(strangers) > 3 else ""
        raise BuildError(
            f"{top}: val has {len(strangers)} classes that {owner} lacks ({', '.join(strangers[:3])}{more}); {MENDED}"
        )


def _lacks(some: Sequence[str], of: Sequence[str]) -> list[str]:
    here = set(some)
    return [name for name in of if name not in here]


def _by_bytes(names: dict[str, str]) -> list[str]:
    return sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))


def _words(names: Sequence[str], listed: Synsets | None) -> dict[str, str]:
    return {name: listed.words[name] for name in names if listed is not None and name in listed.words}
