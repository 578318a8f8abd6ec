"""WebDataset shards: tars, plain or gzipped, of images and files with their labels.

A sample is a run of members whose names are equal up to the first dot, or up to the last one with `last_dot`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, NamedTuple

from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import counted, quoted
from decodeonce.host import usable_cores
from decodeonce.prep.listing import Entry, NumberColumn, Scan, Value, name_bytes, name_text
from decodeonce.prep.sources import SOURCES
from decodeonce.prep.sources.archives import list_tar
from decodeonce.prep.sources.base import Notes
from decodeonce.prep.sources.class_folders import DATASET_PAGE
from decodeonce.prep.sources.files import expecting, parallel_map, system_of
from decodeonce.prep.sources.holders import GZIP_MAGIC, FileFacts, GzipStream, Holder, Member, SourceFiles, read_exactly
from decodeonce.prep.sources.labels import KeptColumns, LabeledSource, NoLabels, check_unlabeled, number_columns
from decodeonce.prep.sources.patterns import matching_files
from decodeonce.store.layout import Json, Paired

SUFFIXES = SOURCES["webdataset"].suffixes
# The first one that a sample has is its image.
IMAGE_SUFFIXES = (b"jpg", b"jpeg", b"png", b"webp", b"gif", b"bmp", b"tif", b"tiff", b"ppm", b"pgm", b"pbm", b"avif")
JSON = b"json"
LABELS = (b"cls", JSON, b"txt")  # the first one with a label gives it; a txt is often a caption
LABEL_KEYS = ("label", "cls", "class")
MAX_LABEL_BYTES = 1 << 16
UNREAD = "images next to the images of samples, not read (if the names of samples contain dots, pass --last-dot)"
_END = re.compile(r"(?: ?\(\d+\)| - Copy)?(?:\.tar|\.tar\.gz|\.tgz)$")  # also of a file that was downloaded twice
_LONE = re.compile("[\ud800-\udfff]")  # lone surrogates: JSON can contain them, valid text cannot
_PARTS = re.compile(rb"((?:.*/)?[^/.]+)\.([^/]+)", re.DOTALL)
_PARTS_AT_LAST_DOT = re.compile(rb"((?:.*/)?[^/]+)\.([^/.]+)", re.DOTALL)


class WebdatasetSource(LabeledSource):
    """The samples of WebDataset shards, in the order of shards and members. Made by `open_webdataset`.

    A sample is named by its shard and its image's name in it. Gzipped shards are unpacked while they are listed, and
    can only be read forward.

    Args:
        root: The folder that file names are relative to.
        files: Name, size in bytes and mtime in ns of each shard.
        gzipped: Indexes of the shards that are gzip streams; default ().
        classes: Class names in label order; default None: they follow from the labels.
        column: Keys of each sample's json to keep as columns of numbers; default None: none.
        paired: The suffix, such as "mask.png", of each mask ("mask") or image of three channels ("target:rgb") of a
            sample; default None: none.
        image_suffix: Suffix of each sample's image, such as "input.jpg"; default "": the first known one of a sample.
        label_suffix: Suffix of each sample's label, such as "target.cls"; default "": cls, json or txt.
        last_dot: Whether a suffix begins at the last dot of a name; default False: at the first.
        no_labels: Whether to ignore labels: all samples are of one class; default False.
        is_folder: Whether the shards are those of the folder `root`, so that listing counts its other files; default
            False.

    Raises:
        BuildError: If a suffix is given twice, or there are both `classes` and `no_labels`.

    Example:
        >>> source = open_webdataset("shards/shard-000000.tar")
        >>> len(list(source.scan().entries))
        16
    """

    kind = "webdataset"
    are_texts = True
    label_advice = ", or name the files of labels with --label-suffix"
    files: SourceFiles

    def __init__(  # noqa: PLR0913 - the settings that a plan records
        self,
        root: Path,
        *,
        files: Iterable[FileFacts],
        gzipped: Sequence[int] = (),
        classes: Sequence[str] | None = None,
        column: Sequence[str] | None = None,
        paired: Mapping[str, str] | None = None,
        image_suffix: str = "",
        label_suffix: str = "",
        last_dot: bool = False,
        no_labels: bool = False,
        is_folder: bool = False,
    ) -> None:
        super().__init__(root, classes, column, no_labels=no_labels)
        label = _member_suffix(label_suffix)
        self._keeps_labels = not set(LABEL_KEYS).isdisjoint(self.column_names)
        self._suffixes = dict(sorted((paired or {}).items()))  # in the order in which the JSON of a plan holds them
        chosen = {"image_suffix": image_suffix, "label_suffix": label_suffix, "last_dot": last_dot}
        self._chosen = {name: value for name, value in chosen.items() if value}
        members = list(map(_member_suffix, filter(None, (*self._suffixes.values(), image_suffix, label_suffix))))
        if twice := [name_text(suffix) for suffix in members if members.count(suffix) > 1]:
            expected = "expected another suffix for the image, the label and each of --paired"
            raise BuildError(f"the suffix {twice[0]} is given twice, {expected}")
        if last_dot and (parts := [name_text(suffix) for suffix in members if b"." in suffix]):
            raise BuildError(f"--last-dot: the suffix {parts[0]} has a dot, so it does not begin at the last one")
        of_pairs = tuple(map(_member_suffix, self._suffixes.values()))
        known = tuple(suffix for suffix in IMAGE_SUFFIXES if suffix not in of_pairs)
        images = (_member_suffix(image_suffix),) if image_suffix else known
        labels = () if no_labels else (label,) if label else LABELS
        self._naming = Naming(
            images, labels, label if label.endswith(JSON) else JSON, of_pairs, last_dot, self.column_names
        )
        self.paired = tuple(map(Paired.parse, self._suffixes))
        self.unit_name = "gzip stream" if gzipped else ""
        self.files = SourceFiles(root, files)
        self._gzipped, self._is_folder = frozenset(gzipped), is_folder
        self._stream: tuple[int, GzipStream] | None = None
        self._notes = Notes()
        self._without_end = set[str]()  # names of the tars that lack the empty blocks at the end
        self._asked = self.options()  # listing may find out that labels are to be ignored

    @property
    def found(self) -> str:
        if self.no_labels:
            labels = "without labels"
        else:
            with closing(self._samples(0, self._naming)) as found:
                label_from = next((sample.label_from for sample in found if sample.label), "")
            none = (
                "no labels in the first shard; a label is the text of a .cls file, or in a .json file the value of "
                f"{', '.join(LABEL_KEYS)}; name files of another suffix with --label-suffix, pass --no-labels, or read "
                f"other keys with a dataset of your own ({DATASET_PAGE}); if the folders in it are "
                "classes, unpack it, and run `prep build folder`"
            )
            labels = f"labels from {label_from}" if label_from else none
        return f"{self.files.describe('shard')}, {labels}"

    def _warnings(self, samples: int) -> list[str]:
        warnings = [*super()._warnings(samples), *self._notes.texts()]
        read = {file.name for file in self.files.files}
        held = os.listdir(self.root) if self._is_folder else []
        if others := sorted(name for name in held if name not in read and name[0] != "."):
            found = f"files and folders left out, because shards are called {', '.join(f'*{end}' for end in SUFFIXES)}"
            warnings.append(f"{found}: {len(others)} ({', '.join(others[:4])})")
        if twins := _twins(self.files):
            warnings.append(f"shards that may have the same images; if so, remove one: {len(twins)} (first {twins[0]})")
        if self._without_end:
            found = f"{counted(len(self._without_end), 'shard')} without the empty blocks that end a tar"
            missing = "all members are whole, but others may be missing; if you downloaded it, check its size"
            warnings.append(f"{found} (first {min(self._without_end)}): {missing}")
        return warnings

    def arguments(self) -> Json:
        own = {"gzipped": sorted(self._gzipped), "column": list(self.column_names), "paired": self._suffixes}
        return {**super().arguments(), "files": self.files.facts(), **own, **self._chosen}

    def fingerprint(self) -> object:
        own = [*self.column_names, *filter(None, [self._asked])]
        return [self.files.facts(), sorted(self._gzipped), self._requested, *own]

    def options(self) -> Json:
        return {**super().options(), **({"paired": self._suffixes} if self._suffixes else {}), **self._chosen}

    def scan(self) -> Scan:
        """Return every sample in the order of shards and members, after all shards have been indexed."""
        columns, seen, indexes = number_columns(self.column_names), dict[str, str](), list[str]()
        self._notes, places = Notes(), dict[str, str]()
        at_once = max(system_of(self.root).reads_at_once(self.root), usable_cores() if self._gzipped else 1)
        with ThreadPoolExecutor(at_once) as threads:
            shards = threads.map(partial(self._listed, self._naming), range(len(self.files.files)))
            for number, found in enumerate(shards):
                path = os.fsdecode(self.files.path(number))
                for sample in found:
                    # A message names few samples, and there may be millions.
                    if sample.label and (sample.label not in seen or sample.label_from not in places or sample.unused):
                        where = f"{path}/{name_text(sample.member.name)}"
                        seen.setdefault(sample.label, where)
                        places.setdefault(sample.label_from, where)
                        if sample.unused:
                            which = f"labels from {sample.label_from} that differ from those in {sample.unused[0]}"
                            self._notes.note(f"{which} (--label-suffix chooses a file)", where)
                    _collect(columns, sample, path)
                    for name in sample.unread:
                        self._notes.note(UNREAD, name_text(name))
                # JSON takes 60 bytes per sample and its name, objects 500.
                listed = [(*sample.member, sample.label, sample.paired) for sample in found]
                indexes.append(json.dumps(listed, default=name_text))
        if len(places) > 1:
            (first, _), (other, where), *_ = places.items()
            advice = "choose a suffix with --label-suffix, or write all labels under one key of json"
            raise BuildError(f"{where}: label from {other}, but those before are from {first}; {advice}")
        self._learn(seen)
        return self._scanned(self._entries(indexes, zip(*columns, strict=True)))

    def _entries(self, indexes: Sequence[str], rows: Iterator[tuple[Value, ...]]) -> Iterator[Entry]:
        """Yield the samples in the indexes of the shards. `rows` has the values of those that can be rows."""
        for number, index in enumerate(indexes):
            for name, place, size, damage, text, paired in json.loads(index):
                label, problem = self._class_of(text)
                values = () if damage else next(rows, ())
                member = Member(name_bytes(name), place, size, damage or problem)
                yield self._entry(number, member, paired, label, values)

    def _entry(
        self, number: int, member: Member, paired: Sequence[list[int]], label: int = 0, values: tuple[Value, ...] = ()
    ) -> Entry:
        """Return the entry of a sample, with places and sizes of the members that are paired with its image."""
        entry = self.files.entry(number, member, label, values)
        if entry.problem or not paired:
            return entry
        numbers: list[list[float]] = [[*place] for place in paired]
        own = {f"paired {one.name}": place for one, place in zip(self.paired, numbers, strict=True)}
        return replace(entry, numbers=own, digested=tuple(str(size) for _, size in paired))

    def read(self, entry: Entry) -> list[bytes]:
        """Return the image and what is paired with it. They are read in the order of the tar."""
        paired = [entry.numbers[f"paired {one.name}"] for one in self.paired]
        places = [(entry.place, entry.size), *((int(place), int(size)) for place, size in paired)]
        found = {place: self._read(entry.unit, *place) for place in sorted(places)}
        return [found[place] for place in places]

    def _read(self, unit: int, place: int, size: int) -> bytes:
        if unit not in self._gzipped:
            return self.files.read(unit, place, size)
        if self._stream is None or self._stream[0] != unit:
            self._stream = (unit, GzipStream(self.files.holder(unit), Stopped))
        return read_exactly(self._stream[1], place, size)

    def find(self, names: Collection[bytes]) -> Iterator[Entry]:
        """Yield the entries with these names. Only their shards are listed; a damaged one does not stop the others."""
        for number, file in enumerate(self.files.files):
            here = {name for name in names if name.startswith(name_bytes(file.name) + b"/")}
            try:
                samples = self._listed(self._naming._replace(labels=(), columns=()), number) if here else ()
                found = (self._entry(number, sample.member, sample.paired) for sample in samples)
                yield from (entry for entry in found if entry.name in here)
            except BuildError as error:
                yield from (Entry(name, 0, 0, 0, str(error)) for name in here)

    def _listed(self, naming: Naming, number: int) -> list[TarSample]:
        """Return the samples of one shard. Of images with one name, the last one counts, as when a tar is unpacked."""
        found = list(self._samples(number, naming))
        last = {sample.member.name: place for place, sample in enumerate(found)}
        for place, sample in enumerate(found):
            if last[sample.member.name] != place and not sample.member.problem:
                problem = "occurs twice in the tar; the later one is used"
                found[place] = sample._replace(member=sample.member._replace(problem=problem), paired=())
        return found

    def _samples(self, number: int, naming: Naming) -> Generator[TarSample, None, None]:
        """Yield the samples of one shard."""
        with self.files.opened(number) as file:
            tar = GzipStream(file, BuildError) if number in self._gzipped else file
            no_end = partial(self._without_end.add, self.files.files[number].name)
            yield from naming.samples(tar, no_end)
            tar.read_to_end()


def open_webdataset(  # noqa: PLR0913 - the flags of the command
    src: str | Path,
    *,
    image_suffix: Annotated[
        str,
        "Read the file with this suffix, such as input.jpg, as a sample's image. (default: jpg, jpeg, png, ...)",
        "TEXT",
    ] = "",
    label_suffix: Annotated[
        str, "Read labels from the file with this suffix, such as target.cls. (default: cls, json or txt)", "TEXT"
    ] = "",
    last_dot: Annotated[
        bool, "Let suffixes begin at the last dot of a name. Without this flag, they begin at the first dot."
    ] = False,
    column: KeptColumns = None,
    no_labels: NoLabels = False,
    paired: Mapping[str, str] | None = None,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> WebdatasetSource:
    """Read WebDataset shards. SRC is a folder of tars, or a pattern: 'shard-{0000..0147}.tar'.

    A sample is an image with a label in cls, json (key `label`, `cls` or `class`) or txt, in this order. The labels of
    all samples must have the same suffix and key.

    Args:
        src: A folder of tars, a tar, or a pattern with braces or wildcards. Tars may be gzipped.
        image_suffix: Suffix of each sample's image, such as "input.jpg"; default "": the first known one of a sample.
        label_suffix: Suffix of each sample's label, such as "target.cls"; default "": cls, json or txt. If it ends with
            "json", the label is the value of the key `label`, `cls` or `class`, and the file has the columns, too.
        last_dot: Whether a suffix begins at the last dot of a name; default False: at the first.
        column: Keys of each sample's json to keep as columns of numbers; default None: none.
        paired: The suffix, such as "mask.png", of each mask ("mask") or image of three channels ("target:rgb") of a
            sample; default None: none.
        no_labels: Whether to ignore labels: all images are of one class; default False.
        classes: Class names in label order; default None: labels that are all whole numbers are the class numbers,
            other labels are sorted by their bytes.
        follow_links: Whether links in a folder may lead out of it; default False.

    Raises:
        BuildError: If a file is missing or cannot be read, or there are both `label_suffix` and `no_labels`, unless the
            suffix names the file with the columns. Listing raises it if a shard is damaged.

    Example:
        >>> source = open_webdataset("shards/shard-{000000..000000}.tar")
        >>> build(source, Path("new.store"), Recipe(height=64, width=64)).count
        16
    """
    has_columns = bool(column) and _member_suffix(label_suffix).endswith(JSON)
    check_unlabeled(no_labels, label_suffix="" if has_columns else label_suffix)
    files = matching_files(src, SUFFIXES, follow_links=follow_links)
    packed = parallel_map(files.root, partial(_is_gzipped, files), range(len(files.files)))
    gzipped = [number for number, is_gzipped in enumerate(packed) if is_gzipped]
    return WebdatasetSource(
        files.root,
        files=files.files,
        gzipped=gzipped,
        classes=classes,
        column=column,
        paired=paired,
        image_suffix=image_suffix,
        label_suffix=label_suffix,
        last_dot=last_dot,
        no_labels=no_labels,
        is_folder=os.path.isdir(src),
    )


def _twins(files: SourceFiles) -> list[str]:
    """Return pairs of shards that may be the same: a.tar and a.tar.gz, or a.tar and a (1).tar of equal size."""
    first = {_END.sub("", file.name): file for file in reversed(files.files)}
    pairs = [(first[_END.sub("", file.name)], file) for file in files.files]
    alike = [(a, b) for a, b in pairs if a is not b and (a.size == b.size or a.name[-3:] != b.name[-3:])]
    return [f"{a.name} and {b.name}" for a, b in alike]


def _is_gzipped(files: SourceFiles, number: int) -> bool:
    with expecting(files.path(number), "expected a readable tar"), files.opened(number) as holder:
        return holder.read_at(0, len(GZIP_MAGIC)) == GZIP_MAGIC


class TarSample(NamedTuple):
    """A sample in a tar: its image, or another member, with the problem if it has no image, and its label.

    Attributes:
        member: The image.
        label: The label as text; "" for none.
        label_from: The suffix of the file with the label, and its key in a json.
        values: A value for each requested column, `...` for a missing one.
        paired: Place and size of each requested member; none if the member has a problem.
        unread: Names of other images in the sample, which become no rows.
        unused: The other files and keys that have another label.
    """

    member: Member
    label: str
    label_from: str
    values: Sequence[object] = ()
    paired: Sequence[list[int]] = ()
    unread: Sequence[bytes] = ()
    unused: Sequence[str] = ()


class Naming(NamedTuple):
    """Finds the samples, images and labels of a tar by the names of its members.

    Attributes:
        images: Suffixes of images. The first one that a sample has is its image.
        labels: Suffixes of labels. The first one with a label gives it. () if labels are not needed.
        json: Suffix of the file with the columns.
        paired: Suffixes of the members that belong to an image.
        last_dot: Whether a suffix begins at the last dot of a name.
        columns: Keys of the json to keep as columns of numbers.
    """

    images: tuple[bytes, ...] = IMAGE_SUFFIXES
    labels: tuple[bytes, ...] = LABELS
    json: bytes = JSON
    paired: tuple[bytes, ...] = ()
    last_dot: bool = False
    columns: Sequence[str] = ()

    def samples(self, tar: Holder, no_end: Callable[[], object] | None = None) -> Iterator[TarSample]:
        """Group the members of a tar into samples, in their order. A gzip stream is only read forward.

        A whole sample may come again, as if it had been appended to replace the first. Raise BuildError if a part does.
        """
        pattern = _PARTS_AT_LAST_DOT if self.last_dot else _PARTS
        parts = ((match[1], match[2].lower(), m) for m in list_tar(tar, no_end) if (match := pattern.fullmatch(m.name)))
        names: dict[bytes, bytes] = {}  # of the image of each sample
        for key, sample in groupby(parts, itemgetter(0)):
            before = names.get(key)
            for found in self._sample(((suffix, member) for _, suffix, member in sample), tar):
                name = names[key] = found.member.name
                if before and (found.member.problem or name != before):
                    what = f"{name_text(name)} is of the sample {name_text(key)}, but not next to its other files"
                    dots = "" if self.last_dot else "; if the names of samples contain dots, pass --last-dot"
                    raise BuildError(f"{tar.path}: {what}; unpack the tar and pack it with tar --sort=name{dots}")
                yield found

    def _sample(self, parts: Iterator[tuple[bytes, Member]], tar: Holder) -> Iterator[TarSample]:
        """Yield a sample. Without an image, yield every image of a longer suffix, so that none is lost uncounted."""
        members: list[tuple[bytes, Member]] = []
        texts: dict[bytes, bytes] = {}
        for suffix, member in parts:
            members.append((suffix, member))
            if suffix not in texts and 0 < member.size <= MAX_LABEL_BYTES and self._is_read(suffix):
                texts[suffix] = tar.read_at(member.place, member.size)
        suffixes = [suffix for suffix, _ in members]
        like_images = [(suffix, member) for suffix, member in members if _ends_like(suffix, IMAGE_SUFFIXES)]
        main = next((member for image in self.images for suffix, member in members if suffix == image), None)
        if main is None:
            problem = self._no_image(suffixes, [name_text(suffix) for suffix, _ in like_images])
            for _, member in like_images or members[:1]:
                yield TarSample(member._replace(problem=problem), "", "")
            return
        by_suffix = dict(members)
        files = ((suffix, by_suffix[suffix], texts.get(suffix)) for suffix in self.labels if suffix in by_suffix)
        label, *unused = [*chain.from_iterable(_labels(*file) for file in files), FoundLabel()]
        main = main._replace(problem=main.problem or self._problem(suffixes, label))
        wanted = {suffix: by_suffix.get(suffix) for suffix in self.paired}
        for suffix, other in wanted.items():
            if problem := "missing in the sample" if other is None else other.problem:
                main = main._replace(problem=main.problem or f"{name_text(suffix)}: {problem}")
        places = [] if main.problem else [[other.place, other.size] for other in wanted.values() if other]
        fields = _fields(texts.get(self.json, b"")) or {} if self.columns else {}
        values = [fields.get(column, ...) for column in self.columns]
        others = [member.name for suffix, member in like_images if suffix not in (*self.images, *self.paired)]
        different = [other.found_in for other in unused if other.text not in ("", label.text)]
        yield TarSample(main, label.text, label.found_in, values, places, others, different)

    def _is_read(self, suffix: bytes) -> bool:
        """Return whether the file with a suffix has a label or the columns."""
        return suffix in self.labels or (bool(self.columns) and suffix == self.json)

    def _no_image(self, suffixes: Sequence[bytes], longer: Sequence[str]) -> str:
        """Return why a sample with files of these suffixes has no image, and what to do; `longer` end like images."""
        problem = f"no image in the sample, which has {', '.join(map(name_text, suffixes[:3]))}"
        if len(self.images) == 1:
            advice = f"expected {name_text(self.images[0])}"
        else:
            advice = f"a sample's files are equal up to the {'last' if self.last_dot else 'first'} dot"
            advice += f"; to read {longer[0]}, pass --image-suffix {quoted(longer[0])}" if len(longer) == 1 else ""
        dots = "; if the names of samples contain dots, pass --last-dot" if len(longer) > 1 else ""
        return f"{problem}; {advice}{dots}"

    def _problem(self, suffixes: Sequence[bytes], label: FoundLabel) -> str:
        """Return why a sample with an image and files of these suffixes cannot become a row, or "" if it can."""
        image = next(suffix for suffix in self.images if suffix in suffixes)
        if suffixes.count(image) > 1:
            return "two images in the sample"
        if any(suffixes.count(label) > 1 for label in self.labels):
            return "two labels in the sample"
        of_row = (*self.paired, *([self.json] if self.columns else []))
        if twice := next((suffix for suffix in of_row if suffixes.count(suffix) > 1), b""):
            return f"two files {name_text(twice)} in the sample"
        if label.text or not self.labels:
            return ""
        if label.problem:
            return f"no label: {label.found_in}: {label.problem}"
        other = next((name_text(suffix) for suffix in suffixes if _ends_like(suffix, LABELS)), "")
        return f"no label; to read {other}, pass --label-suffix {quoted(other)}" if other else "no label"


def _ends_like(suffix: bytes, known: Sequence[bytes]) -> bool:
    """Return whether a suffix has several parts, of which the last one is known, such as "input.jpg"."""
    return b"." in suffix and suffix.rpartition(b".")[2] in known


def _member_suffix(text: str) -> bytes:
    return name_bytes(text.lower().lstrip("."))


class FoundLabel(NamedTuple):
    """A label as text, or why it is none, and the suffix and key that it was found in."""

    text: str = ""
    problem: str = ""
    found_in: str = ""


def _labels(suffix: bytes, member: Member, data: bytes | None) -> Iterator[FoundLabel]:
    """Yield the labels in a file: that of a text, or those of the keys of a json. `data` is None if it was not read."""
    name = name_text(suffix)
    if data is None:
        large = f"{member.size:,} bytes, expected at most {MAX_LABEL_BYTES:,}"
        yield FoundLabel("", member.problem or large, name)
    elif not suffix.endswith(JSON):
        yield FoundLabel(name_text(data).strip(), "", name)
    elif (fields := _fields(data)) is None:
        yield FoundLabel("", "not a valid JSON object", name)
    else:
        for key in (key for key in LABEL_KEYS if key in fields):
            found = fields[key]
            whole = isinstance(found, (int, str)) and not isinstance(found, bool)
            label = str(found) if whole or (isinstance(found, float) and math.isfinite(found)) else ""
            label = "" if _LONE.search(label) else label
            yield FoundLabel(
                label, "" if label else f"{found!r:.40}, expected a number or a text", f"{name} (key {key})"
            )


def _fields(data: bytes) -> Json | None:
    """Return the object in a sample's json; None if it is not an object."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _collect(columns: Sequence[NumberColumn], sample: TarSample, path: str) -> None:
    """Append the values of a sample to the columns, unless it cannot become a row."""
    where = f"{path}: {name_text(sample.member.name)}"
    for column, value in zip(columns, () if sample.member.problem else sample.values, strict=False):
        if value is ...:
            expected = f"expected a json object of at most {MAX_LABEL_BYTES} bytes with the key {column.name!r}"
            raise BuildError(f"{where}: column {column.name!r}: found nothing, {expected}")
        column.append(column.check(value, where))
