"""Find files by a pattern with braces, as in bash, or wildcards, or by their folder."""

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
from decodeonce.prep.sources.files import mode_of
from decodeonce.prep.sources.safe_open import Links

_RANGE = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?")
_SHARD = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}.*")
_SPLIT = re.compile(r"(?:^|[/._-])(train|training|validation|valid|val|test|testing|dev|eval)(?=[/._-])")
MAX_FILES = 1 << 20  # limit for one pattern, because of slips like {0..99999999999}
_ELSEWHERE = re.compile(r"pipe:|[A-Za-z][A-Za-z0-9+.-]*://")


def find_files(
    pattern: str, suffixes: tuple[str, ...], *, deep: bool = False, follow_links: bool = False
) -> tuple[Path, list[str]]:
    """Return the common folder of the files that a pattern matches, and their names below it, in the pattern's order.

    Args:
        pattern: A file, a pattern with braces or wildcards, or a folder. Matches of a wildcard are sorted.
        suffixes: Suffixes of the files to take from a folder.
        deep: Whether to include the subfolders of a folder; default False.
        follow_links: Whether links in a folder may lead out of it; default False. Files that are named themselves may
            be links.

    Raises:
        BuildError: If a file is missing, or a link leads out of a folder.
    """
    if _ELSEWHERE.match(pattern):
        raise BuildError(f"{pattern}: only local files can be read; download them, then pass their path or pattern")
    parts = [pattern] if os.path.exists(pattern) else list(islice(expand_braces(pattern), MAX_FILES + 1))
    if len(parts) > MAX_FILES:
        raise BuildError(f"{pattern}: the pattern expands to more than {MAX_FILES} files; use a narrower one")
    found = {part: _files_of(part, suffixes, deep, follow_links) for part in parts}
    missing = [part for part in parts if not found[part]]
    if missing:
        wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
        if os.path.isdir(missing[0]):
            raise BuildError(f"{missing[0]}: contains no {wanted}; pass the folder that holds them")
        of = f" ({len(missing)} of the {len(parts)} files of {pattern} are missing)" if len(parts) > 1 else ""
        raise BuildError(f"{missing[0]}: no such file{of}; expected {wanted}")
    paths = list(dict.fromkeys(os.path.abspath(path) for part in parts for path in found[part]))
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    return Path(root), [name_text(os.fsencode(os.path.relpath(path, root))) for path in paths]


def describe_files(names: Sequence[str], what: str) -> str:
    """Return the number of files as text, with the name if there is only one."""
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
    """Expand {a,b} and {00..12..3} as bash does, nested ones too. Other braces stay as they are."""
    start = text.find("{")
    if start < 0:
        yield text
        return
    choices, rest = _choices(text, start)
    for choice in choices:
        for tail in expand_braces(rest):
            yield text[:start] + choice + tail


def _choices(text: str, start: int) -> tuple[Iterable[str], str]:
    """Return the alternatives for the brace expression at `start`, and the text after it."""
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
    """Raise BuildError if the files of a folder belong to several splits: train-00000-of-00008, test/0000, ..."""
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
        raise BuildError(f"{folder}: contains several splits ({found}); pass the files of one, such as '{one}'")
