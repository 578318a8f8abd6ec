"""What names say about class folders: which are splits or cannot be classes, and what lies next to them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from decodeonce.errors import BuildError
from decodeonce.formatting import counted, quoted
from decodeonce.prep.listing import name_bytes
from decodeonce.prep.sources.classes import sorted_as_text
from decodeonce.prep.sources.files import IMAGE_SUFFIXES, NO_SAMPLES, SUFFIXES, Links, expecting, system_of
from decodeonce.prep.sources.holders import open_holder, refuse_stand_ins
from decodeonce.remote import absolute, is_url

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
SPLITS |= {"test": "test", "testing": "test"}
_WORDS = sorted(SPLITS, reverse=True)  # the longest of those that begin alike is first
# The name of a split, such as val2017, train.X1 or seg_test, in three parts: "seg_", "test" and "".
_SPLIT = re.compile(rf"(|.*?[._ -])({'|'.join(_WORDS)})((?![a-z]).*)", re.IGNORECASE | re.DOTALL)
_HELD_OUT = re.compile(
    rf"(?<![a-z])({'|'.join(word for word in _WORDS if SPLITS[word] != 'train')})(?![a-z])", re.IGNORECASE
)
_PARTS = re.compile(r"(jpeg)?images?|imgs?|photos?|pictures?|masks?|labels?|annotations?|targets?|data", re.IGNORECASE)
# Names that only a part of a dataset has, such as masks_png, gtFine, SegmentationClass, images_part_1 and images_001.
_SURE_PARTS = re.compile(
    r".*(?<![a-z])(masks|annotations|segmentations|trimaps|ground.?truths?)(?![a-z]).*|train.?masks?"
    r"|(?-i:gt([A-Z_].*)?)|Segmentation(Class|Object).*|.+[ _-]part.?\d+|images?.?\d+",
    re.IGNORECASE,
)
FEW = 8  # folders, as those of the parts of a dataset
# Patients, films and the like, numbered.
_SUBJECTS = re.compile(r"(patient|subject|person|case|study|video|clip|scene|sequence)s?.?\d+", re.IGNORECASE)
WNID = re.compile(r"n\d{8}")
_IMAGE_NAME = re.compile(rb"\w(" + b"|".join(map(re.escape, SUFFIXES)) + rb")\b", re.IGNORECASE)
CSV = "docs/how-to/data/csv.md"
SPLIT_COLUMN = f"{CSV}#a-column-of-splits"
_UNPACK = "unpack it, and pass the folder with its images"
DATASET_PAGE = "docs/how-to/data/dataset-object.md"
AS_DATASET = f"read it with a dataset of your own ({DATASET_PAGE})"
# Suffixes of what a folder may hold instead of images, and how to go on.
PACKED = {
    ".parquet": "run `prep build parquet` instead",
    **dict.fromkeys(
        (".tar", ".tar.gz", ".tgz"), "if it holds the images, see `prep build webdataset --help`, or unpack it"
    ),
    **dict.fromkeys((".zip", ".7z", ".rar"), _UNPACK),
    **dict.fromkeys((".tfrecord", ".tfrecords", ".h5", ".hdf5", ".npy", ".npz", ".mdb", ".mat", ".bin"), AS_DATASET),
}
MOST_PARTS = 16  # folders that a command joins
MOST_TABLES, LOOKED_AT = 16, 4096  # text files, and bytes of each, that may list images


class Top(NamedTuple):
    """The names in a folder, sorted by their bytes: class folders, files, and folders that cannot be classes."""

    folders: list[str]
    files: list[str]
    left_out: list[str]

    def warnings(self) -> list[str]:
        """Return a warning that counts the folders that cannot be classes."""
        found = counted(len(self.left_out), "folder")
        names = ", ".join(map(quoted, self.left_out[:4]))
        return [f"{found} left out, because no class has such a name ({names})"] if self.left_out else []


def list_top(top: Path) -> Top:
    """List a folder."""
    with expecting(top, "expected a folder of class folders"):
        try:
            found = sorted(system_of(top).list_folder(top), key=lambda item: name_bytes(item[0]))
        except NotADirectoryError:
            with open_holder(top) as file:
                refuse_stand_ins(file)
            raise
    listed = Top([], [], [])
    for name, is_folder in found:
        folders = listed.left_out if NO_SAMPLES.fullmatch(name_bytes(name)) else listed.folders
        (folders if is_folder else listed.files).append(name)
    return listed


def check_no_splits(root: Path, names: Sequence[str], links: Links) -> list[str]:
    """Raise BuildError if class folders are surely splits, such as train.X1 and val.X; return a warning if they may be.

    They are splits if the first of them, such as train, contains folders. A single "train" among other classes is a
    vehicle, and so are "bullet_train" and "steam_train".
    """
    groups: dict[str, dict[str, list[str]]] = {}  # the names of each split, by what is before "train"
    for name in names:
        if word := _SPLIT.fullmatch(name):
            groups.setdefault(word[1], {}).setdefault(SPLITS[word[2].lower()], []).append(name)
    for before, splits in groups.items():
        found = [name for name in names if name in chain.from_iterable(splits.values())]
        alone = not before and len(found) == len(names)
        if (len(splits) > 1 or alone) and (warning := _warning_of_splits(root, splits, ", ".join(found), links)):
            return [warning]
    return []


def _warning_of_splits(root: Path, splits: Mapping[str, Sequence[str]], found: str, links: Links) -> str:
    """Raise BuildError if the first split contains folders; otherwise return a warning if there are several splits."""
    held = {split: _inside(root / parts[0], links).folders for split, parts in splits.items()}
    order = sorted(splits, key=list(SPLITS.values()).index)
    advice = "; ".join(f"for {split}, {_pass_as_src(root, splits[split], links, f'ALL-{split}')}" for split in order)
    if first := held[order[0]]:
        contents = f"{splits[order[0]][0]} contains {counted(len(first), 'folder')} (first {quoted(first[0])})"
        error = f"{root}: contains splits instead of classes ({found}): {contents}"
        raise BuildError(f"{error}; {advice}; if these are classes, pass --splits-as-classes")
    return f"classes have the names of splits ({found}); if they are splits, {advice}" if len(splits) > 1 else ""


def _pass_as_src(root: Path, parts: Sequence[str], links: Links, joined: str = "ALL") -> str:
    """Return how to read some of the folders in `root`, which hold class folders, or images; several as `joined`."""
    tops = [_inside(root / part, links) for part in parts]
    held = [name for top in tops for name in top.folders]
    # Each of Kaggle's four folders train.X1 to train.X4 of ImageNet-100 has a quarter of the classes.
    advice = _join(root, parts, held, joined) if parts[1:] else f"pass {quoted(root / parts[0])} as SRC"
    return f"{advice} and --no-labels" if any(top.files for top in tops) and not held else advice


def _join(root: Path, parts: Collection[str], names: Sequence[str], joined: str) -> str:
    """Return how to make one folder of the class folders in `parts`, which have these names, or of images if none."""
    if is_url(root) or len({*names}) < len(names) or len(parts) > MOST_PARTS:
        return f"write a list of all images, whose own folders are then the classes ({CSV})"
    linked = " ".join(f"{quoted(root.absolute() / part)}/*{'/' if names else ''}" for part in parts)
    # -f: folders such as @eaDir may be in each part. They are left out later.
    link = "ln -sf" if names else "ln -s"
    return f"run: mkdir {joined} && {link} {linked} {joined}, then pass {joined} as SRC and --follow-links"


def _inside(folder: Path, links: Links) -> Top:
    return Top([], [], []) if links.folder_leads_outside(os.fsencode(folder)) else list_top(folder)


def several_splits(column: str, values: Iterable[str]) -> list[str]:
    """Return a warning if the values of a column are several splits, some of which may be blank, and nothing else."""
    names = sorted({*values} - {""})
    splits = {SPLITS.get(name.lower()) for name in names}
    found = f"the store has the rows of all values of column {column} ({', '.join(names):.100})"
    return [f"{found}; to build a store for each, see {SPLIT_COLUMN}"] if len(splits) > 1 and None not in splits else []


def odd_names(root: Path, names: Sequence[str], links: Links) -> Iterator[str]:
    """Yield a warning for each thing in the names of class folders, and of the folders around, that may be wrong."""
    if len(names) == 1:
        held = _inside(root / names[0], links).folders
        advice = "to ignore it, pass --no-labels"
        if held:
            advice = f"if its subfolders are the classes, {_pass_as_src(root, names, links)}"
        yield f"the only class is {quoted(names[0])}, so all labels are the same; {advice}"
    elif _are_parts(names):
        found = f"classes have the names of parts of a dataset ({', '.join(map(quoted, names[:FEW]))})"
        images = sorted(names, key=lambda name: not re.search("ima?g|photo|picture|jpe?g", name, re.IGNORECASE))
        yield f"{found}; to read only one, {_pass_as_src(root, images[:1], links)}"
    elif all(map(_SUBJECTS.fullmatch, names)):
        found = f"classes have the names of subjects or films (first {quoted(names[0])})"
        yield f"{found}; if these are not your labels, write a list of all images ({CSV})"
    elif inner := _inner_folders(root, names, links):
        found = f"all class folders hold folders and no images ({', '.join(map(quoted, inner[:4]))})"
        parts = dict.fromkeys(str(path.parent) for path in inner)
        advice = _join(root, parts, [path.name for path in inner], "ALL")
        yield f"{found}; if these are the classes, {advice}"
    if (label := sorted_as_text(names)) is not None:
        found = f"class names are sorted as text: label {label} is class {quoted(names[label])}"
        yield f"{found}; to sort them by number, {_pass_classes(root, 'sort -V')}"


def _are_parts(names: Sequence[str]) -> bool:
    """Return whether folders are probably parts of a dataset: all of them, or one of a few."""
    sure = [name for name in names if _SURE_PARTS.fullmatch(name)]
    return all(name in sure or _PARTS.fullmatch(name) for name in names) or (len(names) <= FEW and bool(sure))


def _inner_folders(root: Path, names: Sequence[str], links: Links) -> list[Path]:
    """Return the folders in class folders that are probably the classes.

    There are none if a class folder has images or mainly files. Neither if half of the names repeat, or have digits, as
    those of patients and videos have, or are those of splits or parts of a dataset.
    """
    found = list[Path]()
    for name in names:
        inside = _inside(root / name, links)
        images = [file for file in inside.files if file.lower().endswith(IMAGE_SUFFIXES)]
        if images or len(inside.files) > max(len(inside.folders), 2):
            return []
        found += [Path(name, folder) for folder in inside.folders]
    different = {path.name for path in found}
    odd = (re.search("[0-9]", WNID.sub("", one)) or _PARTS.fullmatch(one) or _SPLIT.fullmatch(one) for one in different)
    likely = len(different) - sum(map(bool, odd))
    return found if 2 * likely > len(found) else []


def unlike_train(root: Path, names: Sequence[str], listed: Sequence[str] = ()) -> list[str]:
    """Return a warning if the classes of val or test are not those of the train next to it.

    Those in `listed` may be missing there: the user has given them, and `root` has their folders.
    """
    train = train_next_to(root)
    if train is not None:
        with suppress(BuildError):  # it may be unreadable, and is not needed
            others = list_top(train).folders
            known = {*listed} - {*others}
            names = [name for name in names if name not in known]
            if others and {*others} != {*names}:
                return [_difference(train, others, names)]
    return []


def _difference(train: Path, others: Sequence[str], names: Sequence[str]) -> str:
    """Describe how the classes differ from those of train, and say how to pass these."""
    lacks, more = (sorted({*a} - {*b}, key=name_bytes) for a, b in ((others, names), (names, others)))
    found = [f"lacks {counted(len(lacks), 'class', 'classes')} (first {quoted(lacks[0])})"] if lacks else []
    found += [f"has {len(more)} more (first {quoted(more[0])})"] if more else []
    same = _pass_classes(train, "LC_ALL=C sort")
    advice = f"pass the --classes of the build of train; if it had none, {same}"
    return f"compared with {train}, this {' and '.join(found)}, so labels differ; {advice}"


def _pass_classes(root: Path, sort: str) -> str:
    if is_url(root):
        return "pass --classes FILE, with one class name per line"
    junk = "".join(f" -e {quoted(name)}" for name in list_top(root).left_out if not name.startswith("."))
    only = f" | grep -vxF{junk}" if junk else ""
    listed = f"(cd {quoted(root)} && ls -d -- */) | tr -d /{only} | {sort} > classes.txt"
    return f"run: {listed}, and pass --classes classes.txt"


def train_next_to(path: Path) -> Path | None:
    """Return what belongs to a folder or file of val or test: train for val, train/images for val/images.

    The numbers in the names of files may differ. Next to a URL, nothing is looked for.
    """
    if is_url(path):
        return None
    path = Path(absolute(path))
    for word in ("train", "training", "Train", "Training"):
        own, above = (_HELD_OUT.sub(word, one.name) for one in (path, path.parent))
        pattern = re.sub("[0-9]+", "*", glob.escape(own))
        for train in (path.parent / own, path.parent.parent / above / own):
            if train != path:
                found = sorted(train.parent.glob(pattern)) if path.is_file() else [train] * train.is_dir()
                if found:
                    return found[0]
    return None


def odd_files(root: Path, top: Top, links: Links) -> list[str]:
    """Return warnings about images next to the class folders, and about a file of labels next to them or the images."""
    images = [name for name in top.files if name.lower().endswith(IMAGE_SUFFIXES)]
    warnings = []
    if images and top.folders:
        found = f"{counted(len(images), 'image')} next to the class folders"
        warnings.append(f"{found} (first {images[0]!r}), in no class; left out")
    files, folder = [root / name for name in top.files], root
    if len(top.folders) == 1 and not links.folder_leads_outside(os.fsencode(root / top.folders[0])):
        folder = root / top.folders[0]
        files += [folder / name for name in list_top(folder).files]
    for name in [] if images or top.folders else top.files:
        if advice := next((text for end, text in PACKED.items() if name.lower().endswith(end)), ""):
            return [f"{name} is not read; {advice}"]
    tables = [file for file in files if file.suffix.lower() in (".csv", ".tsv", ".txt", ".json", ".jsonl")]
    tables.sort(key=lambda file: file.suffix.lower() not in (".csv", ".tsv"))
    for table in tables[:MOST_TABLES]:
        if advice := _advice_on_table(table, folder):
            return [*warnings, f"{table.name} is not read; if it has the labels, {advice}"]
    return warnings


def _advice_on_table(table: Path, images: Path) -> str:
    """Return how to build from a table of images; "" if it seems to be another file."""
    begin, suffix = b"", table.suffix.lower()
    with suppress(OSError, BuildError), open_holder(table) as file:
        begin = file.read_at(0, LOOKED_AT)
    if suffix not in (".csv", ".tsv") and not _IMAGE_NAME.search(begin):
        return ""
    if suffix.startswith(".json"):
        return f"convert it to a CSV table ({CSV}) and run `prep build list` instead"
    read, at = "`prep build list` instead, with {} as SRC{}", f" and --root {quoted(images)}"
    if suffix == ".txt" and begin.partition(b"\n")[0].count(b"\t") > 1:  # Tiny ImageNet's val_annotations.txt has boxes
        return f"run `cut -f 1,2 {quoted(table)} > labels.tsv`, then {read.format('labels.tsv', at)}"
    has_folder = images == table.parent or name_bytes(images.name) + b"/" in begin
    return f"run {read.format(quoted(table), '' if has_folder else at)}; name its columns as {CSV} says"
