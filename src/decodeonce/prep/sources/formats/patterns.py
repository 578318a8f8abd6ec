"""Files named by a pattern: braces, as of bash, wildcards, or a folder."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.entry import name_text
from decodeonce.prep.sources.base import mode_of
from decodeonce.prep.sources.links import Links

_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?")
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}.*")
_SPLIT = re.compile(r"(?:^|[/._-])(train|training|validation|valid|val|test|testing|dev|eval)(?=[/._-])")
MAX_FILES = 1 << 20  # that a pattern may stand for, as {0..99999999999} does by a slip
_ELSEWHERE = re.compile(r"pipe:|[A-Za-z][A-Za-z0-9+.-]*://")


def find_files(
    pattern: str, suffixes: tuple[str, ...], *, deep: bool = False, follow_links: bool = False
) -> tuple[Path, list[str]]:
    """The folder in which all files lie that `pattern` means, and their names below it, in the pattern's order.

    A folder stands for the files in it (`deep`: below it) that end in one of `suffixes`, and what wildcards match is
    sorted. Raises BuildError where a file is missing, or a link that leads out of such a folder: files that are named
    themselves may lie anywhere.
    """
    if _ELSEWHERE.match(pattern):
        raise BuildError(f"{pattern}: only files can be read; download them, then give their path or pattern")
    parts = [pattern] if os.path.exists(pattern) else list(islice(expand_braces(pattern), MAX_FILES + 1))
    if len(parts) > MAX_FILES:
        raise BuildError(f"{pattern}: more than {MAX_FILES} files, expected no more; name fewer")
    found = {part: _files_of(part, suffixes, deep, follow_links) for part in parts}
    missing = [part for part in parts if not found[part]]
    if missing:
        wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
        if os.path.isdir(missing[0]):
            raise BuildError(f"{missing[0]}: no {wanted} in this folder; name the folder that holds them")
        of = f" ({len(missing)} of the {len(parts)} that {pattern} names are missing)" if len(parts) > 1 else ""
        raise BuildError(f"{missing[0]}: no such file{of}; expected {wanted}")
    paths = list(dict.fromkeys(os.path.abspath(path) for part in parts for path in found[part]))
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return Path(root), [name_text(os.fsencode(os.path.relpath(path, root))) for path in paths]


def describe_files(names: Sequence[str], what: str) -> str:
    """How many files there are, for people; a single one is named."""
    return f"{len(names)} {what}s" if len(names) > 1 else f"1 {what} ({names[0]})"


def _files_of(part: str, suffixes: tuple[str, ...], deep: bool, follow_links: bool) -> list[str]:
    if os.path.isdir(part):
        links = Links(Path(part), follow=follow_links)
        folders, ends = links.walk(), tuple(map(os.fsencode, suffixes))
        every = (os.path.join(top, name) for top, names in (folders if deep else islice(folders, 1)) for name in names)
        found = sorted(path for path in every if path.endswith(ends) and stat.S_ISREG(mode_of(path)))
        for path in found:
            links.check(path)
        return list(map(os.fsdecode, found))
    if os.path.exists(part):
        return [part]
    return sorted(filter(os.path.isfile, glob.glob(part)), key=os.fsencode)


def expand_braces(text: str) -> Iterator[str]:
    """What bash makes of {a,b} and {00..12..3}, nested or several; other braces stay as they are."""
    start = text.find("{")
    if start < 0:
        yield text
        return
    choices, rest = _choices(text, start)
    for choice in choices:
        for tail in expand_braces(rest):
            yield text[:start] + choice + tail


def _choices(text: str, start: int) -> tuple[Iterable[str], str]:
    """What may stand in place of the brace at `start`, and the text after it."""
    depth, edges = 0, [start]
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0 or (depth == 1 and text[at] == ","):
            edges.append(at)
        if depth == 0:
            break
    else:
        return ["{"], text[start + 1 :]
    if len(edges) > 2:
        parts = [text[a + 1 : b] for a, b in pairwise(edges)]
        return [choice for part in parts for choice in expand_braces(part)], text[edges[-1] + 1 :]
    if steps := _RANGE.fullmatch(text[start + 1 : edges[-1]]):
        return _range(*steps.groups()), text[edges[-1] + 1 :]
    return ["{"], text[start + 1 :]


def _range(first: str, last: str, step: str | None) -> Iterator[str]:
    padded = any(len(end.lstrip("-")) > 1 and end.lstrip("-")[0] == "0" for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    start, stop, by = int(first), int(last), abs(int(step or 1)) or 1
    numbers = range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by)
    return (f"{number:0{width}d}" for number in numbers)


def check_one_split(folder: Path, names: list[str]) -> None:
    """BuildError where the files of a folder are those of several splits: train-00000-of-00008, test/0000, …"""
    splits: dict[str, str] = {}
    for name in names:
        shard, word = _SHARD.fullmatch(os.path.basename(name)), _SPLIT.search(name)
        above = folder / os.path.dirname(name)
        if shard:
            splits.setdefault(shard[1], str(above / f"{shard[1]}-*"))
        else:
            splits.setdefault(word[1] if word else "", str(above))
    if len(splits) > 1:
        found, one = ", ".join(split or "others" for split in splits), list(splits.values())[-1]
        raise BuildError(f"{folder}: several splits ({found}); name the files of one, as in '{one}'")
