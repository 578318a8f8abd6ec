"""Images that a text file lists, with labels or in folders that are their classes."""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import xxhash

from decodeonce.errors import BuildError
from decodeonce.formatting import counted, quoted
from decodeonce.prep.listing import Entry, Scan, hash_of, name_bytes, name_text
from decodeonce.prep.sources.base import Notes
from decodeonce.prep.sources.class_folders import AS_DATASET, CSV, SPLITS, several_splits
from decodeonce.prep.sources.classes import sorted_as_text
from decodeonce.prep.sources.files import IMAGE_SUFFIXES, Links, expecting, stat_entries
from decodeonce.prep.sources.holders import CHUNK, HolderFile, new_name, open_holder, refuse_stand_ins
from decodeonce.prep.sources.labels import (
    LABEL_COLUMNS,
    KeptColumns,
    LabeledSource,
    NoLabels,
    check_unlabeled,
    may_be_labels,
    parse_value,
)
from decodeonce.remote import absolute, as_path, check_scheme, check_url, is_url, scheme_of, source_path
from decodeonce.store.layout import Json

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img")

EXPECTED = "expected a list of images"
NESTED_FOLDERS = f"{CSV}#images-in-nested-folders"
MISSING = os.strerror(errno.ENOENT)
CARRIAGE_RETURN = "a carriage return (\\r) inside; if lines end there, run: tr '\\r' '\\n' < LIST > NEW"
LOOKED_AT = 4096  # a binary file has a zero in its first bytes
MOST_ENTRIES, MOST_FOLDERS = 1000, 64  # looked at to find out why a file is missing
SPECIAL = re.compile(r"[][\\.*^$+?(){}|#]")  # in an extended regular expression that ends with #
MOST_DIGITS = 16  # of an id that may have lost leading zeros
MOST_SEARCHES = 100  # missing files that are searched for there: a search takes hundreds of calls of stat
MOST_LOOKED_UP = 1000  # of a longer list, some lines are looked up to count the files in each folder
MAX_LINE = 1 << 20  # characters of a line; a path has at most 4096


class ListSource(LabeledSource):
    """The images that a text file lists, in its order: one path per line, or a TSV or CSV table of paths and labels.

    The list is read twice, first for its classes. A line that repeats an earlier one is ignored. All lines of a path
    that has several labels or values are rejected.

    Args:
        root: The folder that relative paths start from. Absolute paths must be below it.
        file: Path of the list.
        classes: Class names in label order; default None: labels that are all whole numbers are the class numbers,
            other labels are sorted by their bytes.
        column: Names of columns of numbers to keep; default None: none. The list then needs a header line.
        image_column: Name of the column of paths in the header line; default "": one of PATH_COLUMNS.
        label_column: Name of the column of labels in the header line; default "": one of LABEL_COLUMNS.
        suffix: Text to append to each path, such as ".jpg"; default "".
        no_labels: Whether to ignore labels and folders: all images are of one class; default False.
        slashes: Whether paths that begin with a slash, but are not below `root`, start from `root`; default False.
        follow_links: Whether links may lead out of `root`. Default False: such a link is rejected.

    Example:
        >>> source = open_list("val.csv", root=Path("imagenet/val"))
        >>> [cls.name for cls in source.scan().classes]
        ['goldfish', 'tabby', 'tench', 'white shark']
    """

    kind = "list"
    are_texts = True
    links: Links

    def __init__(  # noqa: PLR0913 - the settings that a plan records
        self,
        root: Path,
        *,
        file: str,
        classes: Sequence[str] | None = None,
        column: Sequence[str] | None = None,
        image_column: str = "",
        label_column: str = "",
        suffix: str = "",
        no_labels: bool = False,
        slashes: bool = False,
        follow_links: bool = False,
    ) -> None:
        super().__init__(root, classes, column, no_labels=no_labels)
        self.links = Links(root, follow=follow_links)
        self.file = as_path(file)
        self._columns = Columns(image_column, label_column, self.column_names, no_labels=no_labels)
        self._suffix = suffix
        self._slashes = slashes

    @property
    def top(self) -> Path:
        """The list itself: no folder is listed, so a store may be written next to the images."""
        return self.file

    @property
    def found(self) -> str:
        name = self.file.name if self.file.parent == self.root else self.file
        return f"list {name} ({find_layout(self.file, self._columns)})"

    def arguments(self) -> Json:
        own = {"file": str(self.file), "column": list(self.column_names), "follow_links": self.links.follow}
        return {**super().arguments(), **own, "slashes": self._slashes, **self.options()}

    def options(self) -> Json:
        chosen = {"image_column": self._columns.image, "label_column": self._columns.label, "suffix": self._suffix}
        return {**super().options(), **{name: value for name, value in chosen.items() if value}}

    def scan(self) -> Scan:
        """Return every sample, in the order of the list."""
        # The number of files by subfolder of the root, if some are missing in it; whether none of them is in two.
        self._notes, self._places, self._are_distinct = Notes(), Counter[str](), True
        self._nearby: list[str] | None = None  # folders that may have missing files
        self._learn_classes()
        searches = iter(range(MOST_SEARCHES))
        found = map(partial(self._with_cause, searches), stat_entries(self.root, self._listed(), self.links))
        return self._scanned(found)

    def _warnings(self, samples: int) -> list[str]:
        splits = self._splits([name for name in self._left if name and self._left.count(name) == 1])
        others = [] if self.no_labels or self._columns.label else list(filter(may_be_labels, self._left))
        advice = [f"{name} may have labels, too; if so, pass --label-column {quoted(name)}" for name in others[:1]]
        return [*super()._warnings(samples), *advice, *self._notes.texts(), *splits, *self._odd_folders()]

    def _odd_folders(self) -> Iterator[str]:
        """Yield warnings about classes that are folder names."""
        names = self._names or [] if self._of_folders else []
        if self._requested is None and (label := sorted_as_text(names)) is not None:
            found = f"class names are sorted as text: label {label} is class {quoted(names[label])}"
            yield f"{found}; for another order, pass --classes FILE"
        if several := [name for name, found in self._of_folders.items() if len(found) > 1]:
            first, second = self._of_folders[several[0]].values()
            places = f"(first {quoted(several[0])}: {first} and {second})"
            found = f"classes that are folders of one name in several places: {len(several)} {places}"
            yield f"{found}; if these are different classes, add a column of labels"

    def _splits(self, names: Sequence[str]) -> Iterator[str]:
        """Yield a warning for each of these columns whose values are all splits, several of them."""
        if not names:
            return
        words, found = {*SPLITS, ""}, {name: set[str]() for name in names}
        for line in read_list(self.file, replace(self._columns, numbers=tuple(names))):
            cells = dict(zip(names, map(str.strip, line.values), strict=True))
            found = {name: values | {cells[name]} for name, values in found.items() if cells[name].lower() in words}
            if not found:
                return
        for name, values in found.items():
            yield from several_splits(name, values)

    def _learn_classes(self) -> None:
        seen: dict[str, str] = {}
        labeled, layout = False, find_layout(self.file, self._columns)
        # Up to two folders of each class that do not only differ in a split, if classes are folder names.
        self._of_folders: dict[str, dict[tuple[str | bool, ...], str]] = {}
        self._left = list(layout.left)
        self._keeps_labels = layout.label in layout.others and not self._columns.label
        before = b"/"  # the folder of the line before
        facts, self._contradicted = dict[bytes, int](), set[bytes]()  # about 100 bytes per line
        for number, (line, name) in enumerate(self._lines()):
            if number == 0 and not layout.header:
                self._check_first(line, name, layout)
            labeled = line.label is not None
            if label := self._label(line, name):
                seen.setdefault(label, f"{self.file}: line {line.number}")
                if not labeled and (folder := os.path.dirname(name)) != before:
                    self._note_folder(label, name_text(folder))
                    before = folder
            digest, fact = xxhash.xxh3_128_digest(name), hash_of(name_bytes("\t".join([label, *line.values])))
            if facts.setdefault(digest, fact) != fact:
                self._contradicted.add(digest)
        self._learn(seen, numbered=labeled)

    def _note_folder(self, label: str, folder: str) -> None:
        """Note the folder of a class that is a folder name, unless it differs from a noted one only in a split."""
        if len(folders := self._of_folders.setdefault(label, {})) < 2:
            folders.setdefault(tuple(part.lower() not in SPLITS and part for part in folder.split("/")), folder)

    def _check_first(self, line: ListLine, name: bytes, layout: Layout) -> None:
        """Raise BuildError if the first line may be a header line with unknown names, which would add a class."""
        if {*line.path} & {*"/\\"} or line.path.lower().endswith(IMAGE_SUFFIXES):
            return
        with suppress(OSError):  # such as a name that is too long
            if not (self.root / name_text(name)).is_file():
                advice = self._cause_of_missing(name_text(name), self._nearby_folders())
                if not advice and layout.separator in ("", " ") and (" " in line.path or line.path.isdigit()):
                    advice = "a list has a path and at most a class number after a blank; write anything else as CSV,"
                    advice += f" with a first line path,label ({CSV})"
                elif not advice:
                    advice = f"if this line is a header, pass --image-column {quoted(line.path)}"
                    advice += f" --label-column {quoted(line.label)}" if line.label else ""
                where = f"{self.file}: line {line.number}: {line.path!r:.200}"
                raise BuildError(f"{where}: no such file; {advice}; otherwise correct or remove the line")

    def _listed(self) -> Iterator[Entry]:
        listed = set[bytes]()  # the digests of paths
        for line, name in self._lines():
            label, problem = self._class_of(self._label(line, name))
            digest, where = xxhash.xxh3_128_digest(name), f"line {line.number}"
            if digest in self._contradicted:  # which of its labels is right is not known
                problem = "several times in the list, with different labels or values"
                self._notes.note("lines of paths that have several labels or values, rejected", where)
            elif digest in listed:
                self._notes.note("lines that repeat an earlier line, ignored", where)
                continue
            listed.add(digest)
            fields = () if problem else line.values
            values = self._checked(map(parse_value, fields), f"{self.file}: line {line.number}") if fields else ()
            yield Entry(name, label, 0, 0, problem, values=values)

    def _lines(self) -> Iterator[tuple[ListLine, bytes]]:
        root = name_text(os.fsencode(self.root))
        for line in read_list(self.file, self._columns):
            path, where = line.path + self._suffix, f"{self.file}: line {line.number}: {line.path!r:.200}"
            if scheme_of(path):
                check_scheme(path, f"{where}: ")
            name = path_below(root, path)
            if name is None and self._slashes and path.startswith("/"):
                if os.path.lexists(path):
                    advice = "pass --root / to read it; to read another file below DIR, remove the slash"
                    raise BuildError(f"{where} exists and is not below {root}; {advice}")
                name = path_below(root, path.lstrip("/") or ".")
            if name is None:
                advice = "pass a folder that holds all paths as --root, for example /"
                if not scheme_of(path) and not os.path.lexists(os.path.join(root, path)):
                    advice = self._cause_of_missing(path, []) or "no such file"
                if scheme_of(path) != scheme_of(root):
                    advice = "list local files, and URLs of each kind, in files of their own"
                raise BuildError(f"{where} is not below {root}; {advice}")
            if scheme_of(root):
                check_url(str(self.root / name))
            yield line, name_bytes(name)

    def _with_cause(self, searches: Iterator[int], entry: Entry) -> Entry:
        """Return the entry, with the likely cause if its file is missing. Each search of subfolders takes one item."""
        if entry.problem != MISSING:
            return entry
        folders = [] if next(searches, None) is None else self._nearby_folders()
        cause = self._cause_of_missing(name_text(entry.name), folders)
        below = [folder for folder in folders if not folder.startswith("..")]
        if not cause and len(below) == MOST_FOLDERS and b"/" not in entry.name:
            cause = f"it is not in the first {MOST_FOLDERS} folders; to search all, see {NESTED_FOLDERS}"
        return replace(entry, problem=f"{MISSING}; {cause}") if cause else entry

    def _cause_of_missing(self, name: str, folders: Sequence[str]) -> str:
        """Return why there is probably no file of this name, also in these subfolders; "" if that is unknown."""
        if odd := _oddity(name):
            return odd
        listed, suffixed = name.removesuffix(self._suffix), _with_suffix(name)
        for other, cause in _names_alike(name).items():
            if self._exists("", other):
                rest = other.removeprefix(listed) if other.startswith(listed) else ""
                is_flag = rest != "" and (other in suffixed or (self._suffix != "" and rest[0] == "."))
                flag = f"; pass --suffix {quoted(rest)}" if is_flag else ""
                return f"a file of this name {cause}{flag}"
        for other in (name, *suffixed):
            found = [folder for folder in folders if self._exists(folder, other)]
            if below := [folder for folder in found if not folder.startswith("..")]:
                found = below
            if found[1:]:
                advice = "write the right folder into each path of the list"
                return f"{found[0]}/{other} and {found[1]}/{other} exist; {advice}"
            if found:
                suffix = other.removeprefix(listed) if other.startswith(listed) else self._suffix
                return f"{found[0]}/{other} exists; {self._advice_on_root(found[0], folders, suffix)}"
        return self._cause_in_start(name)

    def _cause_in_start(self, name: str) -> str:
        """Return how to remove the first folders of a path, of another machine or folder, if the rest exists."""
        starts = (name[: at + 1] for at, part in enumerate(name) if part == "/")
        start = next((start for start in starts if self._exists("", name.removeprefix(start))), None)
        if start is None:
            return ""
        advice = f"pass --root {quoted(self.root)}"
        if start != "/":
            script = r's#(^|[,;\t" ])(\./|/)?' + SPECIAL.sub(r"\\\g<0>", start) + "#\\1#"
            new = new_name(self.file)
            command = f"sed -E {quoted(script)} {quoted(self.file)} > {new}"
            advice = f"if this is the file, run: {command}; then build {new}, and {advice}"
        return f"{name.removeprefix(start)} exists; {advice}"

    def _nearby_folders(self) -> list[str]:
        if self._nearby is None:
            self._nearby = _folders_near(self.root)
        return self._nearby

    def _exists(self, folder: str, name: str) -> bool:
        return os.path.exists(os.path.join(os.fsencode(self.root / folder), name_bytes(name)))

    def _advice_on_root(self, folder: str, folders: Sequence[str], suffix: str) -> str:
        """Return how to read the files that are in a subfolder; some may be in others, or not in any."""
        if not self._places:
            step = 1 + sum(1 for _ in self._lines()) // MOST_LOOKED_UP
            paths = (name_text(name) for _, name in islice(self._lines(), 0, None, step))
            names = [path.removesuffix(self._suffix) + suffix for path in paths]
            for name in names:
                self._places.update(islice((place for place in ("", *folders) if self._exists(place, name)), 1))
            self._places[folder] += folder not in self._places  # the lines that were looked up may lack it
            held = (sum(self._exists(place, name) for place in self._places) for name in names)
            self._are_distinct = max(held, default=0) < 2
        more = f" --suffix {quoted(suffix)}" if suffix != self._suffix else ""
        if len(self._places) < 2:
            return f"pass --root {quoted(self._place(folder))}{more}"
        places = [self._place(place) for place in self._places]
        found = ", ".join(f"{place} ({count:,})" for place, count in zip(places, self._places.values(), strict=True))
        advice = list[str]()
        is_beside = any(place.startswith("..") for place in self._places)
        if not is_beside:
            advice.append(f"write the folder into each path of the list, such as {folder}/... ({NESTED_FOLDERS})")
        if ".." in self._places:  # which holds the others
            advice.append("let all paths of the list begin in the same folder")
        elif self._are_distinct and (is_beside or "" not in self._places):
            parts = " ".join(quoted(f"{place}/.") for place in places)
            advice.append(f"run: mkdir ALL && cp -rs {parts} ALL, then pass --root ALL --follow-links{more}")
        advice = advice or ["copy them into one folder, under names that differ, and correct the list"]
        return f"files of this list are in {len(places)} folders: {found}, but --root takes one; {', or '.join(advice)}"

    def _place(self, folder: str) -> Path:
        return Path(os.path.normpath(self.root / folder))

    def _label(self, line: ListLine, name: bytes) -> str:
        if line.label is not None:
            return line.label
        if self.no_labels:
            return ""
        folder, _, _ = name.rpartition(b"/")
        if not folder:
            odd = f"; {found}" if (found := _oddity(line.path)) else ""
            whole = ", or pass a parent folder as --root" if scheme_of(line.path) or line.path.startswith("/") else ""
            raise BuildError(
                f"{self.file}: line {line.number}: {line.path!r:.200} has neither a label nor a folder that names its "
                f"class{odd}; add a column of labels, or pass --no-labels{whole}"
            )
        return name_text(os.path.basename(folder))


def _oddity(name: str) -> str:
    """Return what is odd about the path of a file; "" for nothing."""
    if name != name.strip():
        return f"the path {'ends' if name == name.lstrip() else 'begins'} with a blank"
    if name[0] in "\"'" and name[-1] == name[0]:
        return "the path is in quotation marks, which only a CSV file may have"
    if "\udc80" <= max(name) <= "\udcff":  # bytes that are no UTF-8
        return "the path is not UTF-8; convert the list, for example with: iconv -f LATIN1 -t UTF-8"
    if "\r" in name:
        return f"the path has {CARRIAGE_RETURN}"
    if "\\" in name:
        return "the path has backslashes, expected slashes"
    if found := [separator for separator in ";|" if separator in name]:
        return f"the path contains {found[0]!r}; if that separates columns, write commas or tabs instead"
    return ""


def _with_suffix(name: str) -> dict[str, str]:
    """Return the suffixes of images that this name may lack, by the whole name."""
    cut = {name.removesuffix(end[1:]) + end: end for end in IMAGE_SUFFIXES if name.endswith(end[1:])}  # "0jpg"
    return {name + suffix: suffix for suffix in IMAGE_SUFFIXES} | cut


def _names_alike(name: str) -> dict[str, str]:
    """Return other names that a file may have, and what to say if there is a file of that name."""
    others = {other: f"with the suffix {end} exists" for other, end in _with_suffix(name).items()}
    forms = {unicodedata.normalize(form, name): form for form in ("NFC", "NFD")}
    others |= {other: f"in another Unicode form ({form}) exists" for other, form in forms.items()}
    stem, end = os.path.splitext(name)
    if end:
        others = {stem + other: f"with the suffix {other} exists" for other in IMAGE_SUFFIXES} | others
        others |= {stem + other: f"with the suffix {other} exists" for other in (end.upper(), end.lower())}
    whole = re.sub(r"\b(\d+)\.0(?=\.|$)", r"\1", name)  # pandas reads a column of ids with a blank cell as floats
    advice = "without .0 exists; write the ids as whole numbers, in pandas with astype('Int64')"
    others |= {whole + suffix: advice for suffix in ("", *IMAGE_SUFFIXES) if whole != name}
    folder, number = os.path.split(stem)
    if number.isdigit():  # pandas and spreadsheets read a column of ids as numbers
        padded = [os.path.join(folder, number.zfill(width)) for width in range(len(number) + 1, MOST_DIGITS)]
        advice = "with leading zeros exists; write the ids as text, in pandas with dtype=str"
        others |= {one + suffix: advice for one in padded for suffix in ([end] if end else IMAGE_SUFFIXES)}
    others.pop(name, None)
    return others


def _folders_near(root: Path) -> list[str]:
    """Return the paths of folders in `root` and next to it, at any depth, and "..", as far as they can be listed."""

    def folders_in(folder: Path) -> list[str]:
        with suppress(OSError):  # also for a folder behind a URL
            return sorted(item.name for item in islice(os.scandir(folder), MOST_ENTRIES) if item.is_dir())
        return []

    found = list[str]()
    for near in (folders_in(root), [f"../{name}" for name in folders_in(root.parent) if name != root.name]):
        for one in islice(near, MOST_FOLDERS):  # which grows
            near += (f"{one}/{two}" for two in folders_in(root / one))
        found += near
    return [*found[:MOST_FOLDERS], ".."]


def path_below(root: str, path: str) -> str | None:
    """Return a path, absolute or relative to `root`, as a path below `root`; None if it is not below it."""
    if root.endswith("://") and not scheme_of(path):
        return None  # no bucket or host
    if path[0] not in "/." and "/." not in path and "//" not in path and path[-1] != "/":
        return path  # the common case: normalizing takes longer than everything else
    top = os.path.join(root, "")
    scheme, slashes, rest = top.rpartition("://")  # normpath would cut the slashes of a URL
    whole = path if scheme_of(path) else scheme + slashes + os.path.normpath(os.path.join(rest, path))
    return whole[len(top) :] if whole.startswith(top) and whole != top else None


def open_list(  # noqa: PLR0913 - the flags of the command
    src: str | Path,
    *,
    root: Annotated[Path | None, "Resolve relative paths from this folder. (default: the list's folder)", "DIR"] = None,
    column: KeptColumns = None,
    image_column: Annotated[str, "Read paths from the column that has this name in the header line.", "NAME"] = "",
    label_column: Annotated[str, "Read labels from the column that has this name in the header line.", "NAME"] = "",
    suffix: Annotated[str, "Append this to each path, such as .jpg if the list has ids.", "TEXT"] = "",
    no_labels: NoLabels = False,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ListSource:
    """Read images that a file lists. SRC contains a path or URL per line, or is a TSV or CSV table.

    Args:
        src: The list, UTF-8 text.
        root: The folder that relative paths start from; default None: the list's folder. Absolute paths must be below
            it. If `root` is given, other paths that begin with a slash start from it, too. If the first line has a URL
            outside the list's folder, the default is its scheme, such as s3://.
        column: Names of columns of numbers, or of JSON lists of numbers, to keep in the store; default None: none. The
            list then needs a header line. If it has neither labels nor folders, or its labels are numbers such as 0.5
            in one of these columns, all images are of one class.
        image_column: Name of the column of paths in the header line; default "": one of PATH_COLUMNS.
        label_column: Name of the column of labels in the header line; default "": one of LABEL_COLUMNS.
        suffix: Text to append to each path, such as ".jpg" if the list has ids; default "".
        no_labels: Whether to ignore labels and folders: all images are of one class; default False.
        classes: Class names in label order; default None: labels that are all whole numbers are the class numbers,
            other labels are sorted by their bytes. A list without labels uses the name of each image's folder.
        follow_links: Whether links may lead out of `root`. Default False: such a link is rejected.

    Raises:
        BuildError: If `root` is not a folder. Listing raises it if the list cannot be read or a line is invalid.

    Example:
        >>> print(Path("val.csv").read_text())
        path,label,score
        n01440764/n01440764_0.JPEG,tench,0.5
        ...
        >>> source = open_list("val.csv", root=Path("imagenet/val"), column=["score"])
        >>> next(iter(source.scan().entries)).values
        (0.5,)
    """
    file = as_path(absolute(source_path(src)))
    given = source_path(root) if root is not None else None
    if given is not None and not is_url(given) and not os.path.isdir(given):
        raise BuildError(f"{root}: no such folder; expected the folder that the paths in {file} start from")
    top = as_path(absolute(given)) if given else file if file.is_dir() else file.parent
    check_unlabeled(no_labels, label_column=label_column)
    columns = Columns(image_column, label_column, tuple(column or ()), no_labels=no_labels)
    with suppress(BuildError):  # listing raises it again
        no_labels = no_labels or (classes is None and find_layout(file, columns).no_labels)
        first = next(read_list(file, columns), None) if given is None else None
        if first and scheme_of(first.path) and path_below(str(top), first.path) is None:
            top = as_path(f"{scheme_of(first.path)}://")
    return ListSource(
        top,
        file=str(file),
        classes=classes,
        column=column,
        image_column=image_column,
        label_column=label_column,
        suffix=suffix,
        no_labels=no_labels,
        slashes=given is not None,
        follow_links=follow_links,
    )


@dataclass(frozen=True)
class Columns:
    """The columns that a user chose: of paths and labels ("" to recognize them), and of numbers to keep."""

    image: str = ""
    label: str = ""
    numbers: tuple[str, ...] = ()
    no_labels: bool = False


class ListLine(NamedTuple):
    """A parsed line. `label` is None if the list has no labels, and "" if only this line has none.

    `values` are the texts in the requested columns.
    """

    number: int
    path: str
    label: str | None
    values: list[str]


@dataclass(frozen=True)
class Layout:
    """The format of a list: the separator of its columns ("" for none), and the positions of path, label and others.

    `width` is the number of columns, and `left` are the names of those that are not read.
    """

    separator: str = ""
    width: int = 1
    path: int = 0
    label: int | None = None
    header: bool = False
    others: tuple[int, ...] = ()
    left: tuple[str, ...] = ()
    no_labels: bool = False

    def __str__(self) -> str:
        kind = {"\t": "TSV", ",": "CSV", " ": "one path and label per line", "": "one path per line"}[self.separator]
        classes = "without labels" if self.no_labels else "classes from folder names"
        return f"{kind}, {classes if self.label is None else 'with labels'}"


def read_list(file: Path, columns: Columns = Columns()) -> Iterator[ListLine]:
    """Yield the lines of a list that are not blank; raise BuildError for a line that does not match the first."""
    layout = find_layout(file, columns)
    last = max(layout.path, layout.label or 0, *layout.others)
    names = list[str]()
    for row, (number, fields) in enumerate(_rows(file, layout.separator)):
        if row == 0 and layout.header:
            names = fields
            continue
        if len(fields) <= last or "\0" in fields[layout.path]:
            raise BuildError(f"{file}: line {number}: {fields!r:.200}, expected {layout}")
        if not fields[layout.path].strip():
            column = names[layout.path] if names else f"number {layout.path + 1}"
            advice = "write it there, or remove the line"
            raise BuildError(f"{file}: line {number}: the path in column {column} is blank; {advice}")
        if len(fields) != layout.width:  # the label may be cut, or be the text of another column
            found = f"{counted(len(fields), 'field')}, but the first line has {layout.width}"
            advice = "put quotation marks around a text with commas" if layout.separator == "," else "remove other tabs"
            advice = advice if len(fields) > layout.width else "write the empty fields, too"
            raise BuildError(f"{file}: line {number}: {fields!r:.200}: {found}; {advice}")
        label = None if layout.label is None else fields[layout.label].strip()
        yield ListLine(number, fields[layout.path], label, [fields[other] for other in layout.others])


def find_layout(file: Path, columns: Columns = Columns()) -> Layout:
    """Find the format of a list from its name and first lines, and the positions of `columns`."""
    rows = list(islice(_rows(file, ""), 2)) or [(0, [""])]
    number, [line] = rows[0]
    _refuse_other_formats(file, line)
    separator = _separator(file, line)
    fields = [field.strip() for field in _split(file, number, line, separator)]
    path = _position(file, fields, columns.image, "--image-column", PATH_COLUMNS)
    kept = {name.lower() for name in columns.numbers}
    known = (*(name for name in LABEL_COLUMNS if name not in kept), *LABEL_COLUMNS)
    label = None if columns.no_labels else _position(file, fields, columns.label, "--label-column", known)
    is_header = path is not None and (label is not None or columns.no_labels or len(fields) == 1 + len(columns.numbers))
    if is_header:
        others = tuple(_position(file, fields, name, "--column", ()) or 0 for name in columns.numbers)
        first = _split(file, rows[-1][0], rows[-1][1][0], separator)[path or 0 :][:1]
        no_labels = columns.no_labels or bool(others and label is None and first and "/" not in first[0])
        left = tuple(name for at, name in enumerate(fields) if at not in (path, label, *others))
        place = (separator, len(fields), path or 0, label)
        return Layout(*place, header=True, others=others, left=left, no_labels=no_labels)
    absent = next((name for name in columns.numbers if name not in fields), None)
    if absent and path is None:
        raise BuildError(
            f"{file}: no header line, but --column {absent} needs one; expected a first line with {absent} and one of "
            f"{', '.join(PATH_COLUMNS)}; for another name, pass --image-column NAME"
        )
    paths = (_split(file, number, line, separator)[0].strip().lower() for number, [line] in rows)
    unknown = len(fields) == 2 and [path.endswith(IMAGE_SUFFIXES) for path in paths] == [False, True]  # a header line
    if path is not None or label is not None or len(fields) > 2 or unknown or columns.numbers:
        raise BuildError(
            f"{file}: columns {', '.join(fields)[:200]}; expected a path and a label, or a header line with "
            f"one of {', '.join(PATH_COLUMNS)} and one of {', '.join(LABEL_COLUMNS)}; for other names, pass "
            "--image-column NAME and --label-column NAME, or --no-labels; --column NAME keeps a column of numbers"
        )
    label = 1 if len(fields) == 2 and not columns.no_labels else None
    return Layout(separator, len(fields), 0, label, no_labels=columns.no_labels)


def _refuse_other_formats(file: Path, line: str) -> None:
    """Raise BuildError if the first line is JSON, or a header with semicolons."""
    if line.lstrip()[:1] in ("{", "["):
        advice = f"expected CSV, TSV or one path per line; {CSV} converts it; for boxes, pass it as --boxes"
        raise BuildError(f"{file}: JSON, such as that of COCO, or metadata.jsonl of Hugging Face; {advice}")
    names = {name.strip(' "').lower() for name in line.strip().split(";")}
    if ";" in line and names & {*PATH_COLUMNS, *LABEL_COLUMNS}:
        found = "semicolons between the columns, as Excel may write them; expected commas or tabs"
        advice = "with pandas, read_csv(LIST, sep=';', dtype=str, keep_default_na=False).to_csv(NEW, index=False)"
        raise BuildError(f"{file}: {found}; {advice}")


def _position(file: Path, names: list[str], name: str, flag: str, known: Sequence[str]) -> int | None:
    """Return the position of the column `name` or, without a name, of the first of the `known` names that is there."""
    given = name or next((each for each in known if each in map(str.lower, names)), None)
    if given is None:
        return None
    lower = names if name else [each.lower() for each in names]
    if (count := lower.count(given)) > 1:
        raise BuildError(f"{file}: {count} columns are called {given}; rename them, or choose another with {flag}")
    if not count:
        advice = "; write commas or tabs instead of semicolons" if ";" in names[0] and not names[1:] else ""
        found = f"no column of this name, expected one of {', '.join(names):.200}"
        raise BuildError(f"{file}: {flag} {given}: {found}{advice}")
    return lower.index(given)


def _separator(file: Path, line: str) -> str:
    suffix = file.suffix.lower()
    if suffix == ".csv" and ("," in line or "\t" not in line):
        return ","
    if suffix == ".tsv" or "\t" in line:
        return "\t"
    path, _, number = line.rpartition(" ")
    numbered = path.strip() != "" and re.fullmatch("-?[0-9]+", number) is not None
    # a path may contain a comma
    if "," in line and not (path.rstrip(" ") if numbered else line).lower().endswith(IMAGE_SUFFIXES):
        return ","
    return " " if numbered else ""


def _rows(file: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and fields of each line that is not blank."""
    with expecting(file, EXPECTED), open_holder(file) as holder:
        begin, new = holder.read_at(0, LOOKED_AT), new_name(file)
        then = f"; then build {new}; if its paths are relative, pass --root {quoted(file.parent)} or your own"
        refuse_stand_ins(holder, then=then)
        if b"\0" in begin:  # an image, an archive, or a list that Excel wrote
            advice = f"if it has arrays, {AS_DATASET}; if it is a text, run: iconv -f UTF-16 -t UTF-8 {quoted(file)} > "
            raise BuildError(f"{file}: binary or UTF-16; expected UTF-8 text; {advice}{new}{then}")
        raw = io.BufferedReader(HolderFile(holder), CHUNK)
        # Only \n, or \r on old Macs, ends a line: paths may contain the other line ends of Python.
        end = "\r" if b"\r" in begin and b"\n" not in begin else "\n"
        with io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline=end) as text:
            for number, line in enumerate(iter(partial(text.readline, MAX_LINE + 1), ""), 1):
                if len(line) > MAX_LINE:
                    raise BuildError(f"{file}: a line has more than {MAX_LINE} characters; expected a path and a label")
                fields = _split(file, number, line, separator)
                if any(map(str.strip, fields)):
                    yield number, fields


def _split(file: Path, number: int, line: str, separator: str) -> list[str]:
    if separator == ",":
        try:
            fields = next(csv.reader([line]))
        except csv.Error as error:
            found = f"the line has {CARRIAGE_RETURN}" if "new-line" in str(error) else f"{error}; expected CSV"
            raise BuildError(f"{file}: line {number}: {found}") from None
        if any(field.endswith(("\n", "\r")) for field in fields):
            raise BuildError(f"{file}: line {number}: a quoted field spans several lines; expected one row per line")
        return fields
    line = line.rstrip("\r\n")
    if separator == " ":
        path, blank, label = line.rpartition(" ")
        return [path.rstrip(" "), label] if blank else [line]
    return line.split(separator) if separator else [line]
