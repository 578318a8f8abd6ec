"""Find files by a pattern with braces, as in bash, or wildcards, or by their folder."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import bracex

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted
from decodeonce.prep.listing import name_text
from decodeonce.prep.sources.class_folders import SPLITS
from decodeonce.prep.sources.files import parallel_map, system_of
from decodeonce.prep.sources.holders import SourceFiles, source_file
from decodeonce.remote import absolute, as_path, source_text

_SHARD = re.compile(r"(.+)-[0-9]{5}-of-[0-9]{5}.*")
_SPLIT = re.compile(rf"(?:^|[/._ -])({'|'.join([*SPLITS, 'eval'])})(?![a-z])", re.IGNORECASE)
MAX_FILES = 1 << 20  # limit for one pattern, because of slips like {0..99999999999}


def matching_files(
    src: str | Path, suffixes: tuple[str, ...], *, deep: bool = False, follow_links: bool
) -> SourceFiles:
    """Return the files that `find_files` finds, with their sizes and mtimes."""
    root, names = find_files(src, suffixes, deep=deep, follow_links=follow_links)
    return SourceFiles(root, parallel_map(root, partial(source_file, root), names))


def find_files(
    src: str | Path, suffixes: tuple[str, ...], *, deep: bool = False, follow_links: bool = False
) -> tuple[Path, list[str]]:
    """Return the common folder of the files that a pattern matches, and their names below it, in the pattern's order.

    Args:
        src: A file, a pattern with braces or wildcards, or a folder. Matches of a wildcard are sorted.
        suffixes: Suffixes of the files to take from a folder.
        deep: Whether to include the subfolders of a folder; default False.
        follow_links: Whether links in a folder may lead out of it; default False. Files that are named themselves may
            be links.

    Raises:
        BuildError: If a file is missing, a link leads out of a folder, or a folder or wildcard has several splits.
    """
    pattern = source_text(src)
    if pattern.startswith("pipe:"):
        raise BuildError(f"{pattern}: a command cannot be read; pass the URL or the path that it reads")
    try:
        parts = bracex.expand(pattern, keep_escapes=True, limit=MAX_FILES)
    except bracex.ExpansionLimitException:
        raise BuildError(f"{pattern}: the pattern expands to more than {MAX_FILES} files; use a narrower one") from None
    if not parts or os.path.exists(pattern):
        parts = [pattern]
    system = system_of(pattern)
    found = {part: system.find(part, suffixes, deep=deep, follow_links=follow_links) for part in parts}
    missing = [part for part in parts if not found[part]]
    if missing:
        wanted = " or ".join(f"*{suffix}" for suffix in suffixes)
        if os.path.isdir(missing[0]):
            raise BuildError(f"{missing[0]}: contains no {wanted}; pass the folder that holds them")
        of = f" ({len(missing)} of the {len(parts)} files of {pattern} are missing)" if len(parts) > 1 else ""
        raise BuildError(f"{missing[0]}: no such file{of}; expected {wanted}")
    for part, files in found.items():
        if files != [part]:
            _check_one_split(part, files)
    paths = list(dict.fromkeys(absolute(as_path(path)) for part in parts for path in found[part]))
    top = os.path.commonpath([os.path.dirname(path) for path in paths])
    root = type(as_path(paths[0]))(top)  # a URL keeps its two slashes
    return root, [name_text(os.fsencode(os.path.relpath(path, root))) for path in paths]


def _check_one_split(part: str, files: Sequence[str]) -> None:
    """Raise BuildError if a folder or wildcard has the files of several splits: train-00000-of-00008, test/0000, ..."""
    top, splits = os.path.dirname(re.split(r"[*?[]", f"{part}/", maxsplit=1)[0]), dict[str, set[str]]()
    for file in files:
        folder, name = os.path.split(file)
        below = file.removeprefix(f"{top}/")
        shard, word = _SHARD.fullmatch(name), _SPLIT.search(below)
        split, its_files = word[1] if word else "", folder
        if shard:
            split, its_files = shard[1], f"{glob.escape(os.path.join(folder, shard[1]))}-*"
        elif word and word.end() > len(below) - len(name):  # in the name of the file
            its_files = f"{glob.escape(os.path.join(folder, name[: word.end() - len(below)]))}*"
        splits.setdefault(split, set()).add(its_files)
    if len(splits) > 1:
        found = ", ".join(split or "others" for split in splits)
        whole = [one for split, [one, *others] in splits.items() if split and not others and "{" not in one]
        such = f", such as {quoted(as_path(whole[-1]))}" if whole else ""
        advice = f"pass the files of one{such}, or all in braces, {{A,B}}"
        raise BuildError(f"{part}: contains several splits ({found}); {advice}")
