"""ImageNet in every form: class folders, images in one folder, tars and zips of both, and the tars as downloaded.

`open_imagenet` finds the form of a split, and decides its classes and their label order. Archives are read without
unpacking.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from decodeonce.errors import BuildError
from decodeonce.formatting import counted, quoted
from decodeonce.prep.listing import Entry, Scan, Undecodable, name_bytes, name_text
from decodeonce.prep.sources.archives import list_tar, list_zip, read_member, sort_members
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.class_folders import WNID, list_top
from decodeonce.prep.sources.classes import check_classes
from decodeonce.prep.sources.files import Links, expecting, is_file, is_folder, parallel_map, stem_of, system_of
from decodeonce.prep.sources.folder import BySuffix, is_image_name
from decodeonce.prep.sources.holders import FileFacts, Member, SourceFile, SourceFiles, open_holder, source_file
from decodeonce.prep.sources.imagenet_labels import MAPPING, NAMED, SOLUTION, VAL_PREFIX, CompanionFiles, ValLabels
from decodeonce.remote import source_path
from decodeonce.store.layout import Json
from decodeonce.store.manifest import ImageClass

Split = Literal["train", "val"]
AnySplit = Literal[Split, "auto"]
SPLITS: tuple[Split, ...] = get_args(Split)
FOLDERS, FLAT, TARS, ZIP = "imagenet", "imagenet-flat", "imagenet-tar", "imagenet-zip"
WHOLE = {"train": 1_281_167, "val": 50_000}  # images of ILSVRC2012
MANY_CLASSES = 900  # with fewer classes it is a chosen subset, and no warning about missing images is given
ADVICE = "pass --classes FILE to define the label order"
# The folders that hold train and val in Kaggle's layout, or in parts of it.
BASES = ("", "ILSVRC/Data/CLS-LOC", "Data/CLS-LOC", "CLS-LOC")
TAR = "ILSVRC2012_img_{split}.tar"
VAL_NAMES = ("val", "validation")
KNOWN = (
    "train/<wnid>/*.JPEG, val in the same layout or in one folder, Kaggle's ILSVRC/Data/CLS-LOC or its zip, "
    f"{TAR.format(split='train')}, {TAR.format(split='val')}, or a folder of classes"
)
TARS_AT_ONCE = 64  # class tars listed ahead: 83,000 images of ImageNet, 20 MB
_CLASS_TAR = re.compile(r"(n\d{8})\.tar")
_SPLIT_FOLDER = re.compile(rb"(?:^|/)(train|val|test)(?:ing|idation)?/")
_CLASS_FOLDER = re.compile(rb"(?:^|/)(?:(?:train|val)/([^/]+)|(n\d{8}))/")
_LISTS = (MAPPING.encode(), SOLUTION.encode())


def open_imagenet(
    src: str | Path,
    *,
    split: Annotated[
        AnySplit, "Read this split. auto: train if SRC has it, otherwise val, otherwise SRC itself."
    ] = "auto",
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> ImagenetSplit:
    """Read ImageNet in any form. SRC is a tree, the tars as downloaded, or Kaggle's folders or zip.

    Archives are read without unpacking. Labels follow the sorted classes of train, also for val, as in torchvision.
    Labels of images in one folder come from their names, LOC_val_solution.csv or the development kit.

    Args:
        src: The folder that holds the dataset or one split of it, or an archive.
        split: "train", "val" or "auto" (default): train if `src` has it, otherwise val, otherwise `src` itself, as
            train, or as val if its name is "val" or "validation" or it holds val images.
        classes: Class names (wnids) in label order; default None: see above.
        follow_links: Whether links may lead out of `src`; default False.

    Returns:
        The source of the split. Its `found` describes the form.

    Raises:
        BuildError: If no known form is found, val has no labels, or val has a class without a label.

    Example:
        >>> source = open_imagenet("imagenet", split="val")
        >>> source.found
        'class folders in val, 4 classes'
    """
    root = source_path(src)
    links = Links(root, follow=follow_links)
    source = _find(root, split, links)
    train = _train_classes(root, source, links) if source.split == "val" and classes is None else None
    source.set_classes(classes, train)
    return source


def _find(root: Path, split: str, links: Links) -> ImagenetSplit:
    """Find the split: unpacked, otherwise in an archive, otherwise SRC itself as its folder."""
    for one in SPLITS if split == "auto" else (split,):
        found = next(_forms_in(root, one, links), None)
        if found is not None:
            return found
        if (root / one).is_dir():  # an empty folder: make_plan reports it
            return ImagenetSplit(root, kind=FOLDERS, split=one, folder=one, follow_links=links.follow)
    own = "val" if os.path.basename(os.path.realpath(root)) in VAL_NAMES else "train"
    form = next(_forms_of(root, "", own, links), None)
    for one in SPLITS if split == "auto" else (split,):  # listing a compressed tar fails with advice
        form = form or next(_in_tars(root, "", one, links, compressed=True), None)
    if form is None or split not in ("auto", form.split):
        raise _unrecognized(root, split)
    return form


def _train_classes(root: Path, val: ImagenetSplit, links: Links) -> list[str] | None:
    """Return the classes of the train split in SRC or next to it; None without one."""
    train = next(_forms_in(root, "train", links), None)
    if train is None and val.top == root:
        home = root.absolute().parent
        train = next(_unpacked_or_tar(home, "train", Links(home, follow=links.follow)), None)
    return None if train is None else train.present_classes()


def _forms_in(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """Yield the forms of a split in a folder or an archive, unpacked ones first, and zips, which take long, last."""
    if is_file(root):
        file = source_file(root, "")
        with open_holder(root) as holder:
            kind = ZIP if holder.read_at(0, 2) == b"PK" else TARS
        if split in list_archives(root, (file,)).splits:
            yield ImagenetSplit(root, kind=kind, split=split, files=[file])
        return
    yield from _unpacked_or_tar(root, split, links)
    if not is_folder(root):
        return
    top = list_top(root)
    if any(map(WNID.fullmatch, top.folders)):
        return  # SRC itself is a folder of class folders, and archives next to them are something else
    for folder in ("", "data"):
        yield from _in_tars(root, folder, split, links)
    names = [name for name in top.files if name.endswith(".zip") and is_file(root / name)]
    yield from _in_zips(root, split, [source_file(root, name, links) for name in names])


def _unpacked_or_tar(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    for base in BASES:
        yield from _forms_of(root, os.path.join(base, split), split, links)
    for suffix in ("", ".gz"):  # listing a compressed tar fails with advice
        name = TAR.format(split=split) + suffix
        if (root / name).is_file():
            yield ImagenetSplit(root, kind=TARS, split=split, files=[source_file(root, name, links)])


def _in_tars(root: Path, folder: str, split: str, links: Links, *, compressed: bool = False) -> Iterator[ImagenetSplit]:
    """Yield the tars of a split that have other names than ILSVRC2012's, such as train.tar or train_images_0.tar.

    If all of them are `compressed`, they are only yielded if that is requested: the images may be elsewhere, too.
    """
    if is_folder(root / folder):
        named = re.compile(rf"(?!ILSVRC2012_|\.)(.*[._-])?{split}(idation)?([._-].*)?\.tar(\.gz)?")
        names = list(filter(named.fullmatch, list_top(root / folder).files))
        names = [name for name in names if not name.endswith(".gz") or name.removesuffix(".gz") not in names]
        if not compressed and all(name.endswith(".gz") for name in names):
            return
        if files := [source_file(root, os.path.join(folder, name), links) for name in names]:
            yield ImagenetSplit(root, kind=TARS, split=split, files=files)


def _in_zips(root: Path, split: str, files: Sequence[SourceFile]) -> Iterator[ImagenetSplit]:
    zips = [(file, splits) for file in files if (splits := list_archives(root, (file,)).splits)]
    if len(zips) > 1:
        paths = ", ".join(str(root / file.name) for file, _ in zips[:2])
        raise BuildError(f"{paths}: both contain ImageNet; pass one of them as SRC")
    for file, splits in zips:
        if split in splits:
            yield ImagenetSplit(root, kind=ZIP, split=split, files=[file])


def _forms_of(root: Path, folder: str, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """Yield the form of a folder: class folders, val images or class tars."""
    top = root / folder
    if not is_folder(top):
        return
    classes, names, _ = list_top(top)
    images = [name for name in names if name.startswith(VAL_PREFIX) or class_in_name(name_bytes(name))]
    tars = [name for name in names if name.endswith(".tar") and not name.startswith((".", "ILSVRC2012_"))]
    if classes:
        # A class tar without a folder next to class folders: its class would be missing.
        packed = [name for name in names if (match := _CLASS_TAR.fullmatch(name)) and match[1] not in classes]
        unsorted = [name for name in images if name.startswith(VAL_PREFIX) or re.match(r"n\d{8}_\d", name)]
        if others := unsorted or packed:
            raise BuildError(
                f"{top}: {len(others)} images or class tars (first {others[0]}) are next to {len(classes)} class "
                "folders; if sorting or unpacking them was interrupted, finish it; otherwise move them away"
            )
        yield ImagenetSplit(root, kind=FOLDERS, split=split, folder=folder, follow_links=links.follow)
    elif images:
        own = "val" if images[0].startswith(VAL_PREFIX) else split
        yield ImagenetSplit(root, kind=FLAT, split=own, folder=folder, follow_links=links.follow)
    elif split == "train" and tars:
        files = [source_file(root, os.path.join(folder, name), links) for name in tars]
        yield ImagenetSplit(root, kind=TARS, split=split, folder=folder, files=files, apart=True)


def _unrecognized(root: Path, split: str) -> BuildError:
    with expecting(root, f"expected a folder with {KNOWN}; or one of these archives"):
        if not is_file(root):
            system_of(root).list_folder(root)
    what = "no known form of ImageNet" if split == "auto" else f"no {split} split of ImageNet"
    return BuildError(f"{root}: {what} found; expected {KNOWN}; or another --split")


class ImagenetSplit(Source):
    """A split of ImageNet in one of its forms. Made by `open_imagenet`, which also sets the classes.

    Args:
        root: SRC.
        kind: "imagenet" (class folders), "imagenet-flat" (images in one folder), "imagenet-tar" or "imagenet-zip".
        split: "train" or "val".
        folder: Path of the folders or class tars below `root`.
        files: Name, size in bytes and mtime in ns of each archive; default None: there are none.
        apart: Whether the archives are class tars, and not tars of a whole split; default False.
        follow_links: Whether links may lead out of `root`; default False.
        classes: Class names (wnids) in label order; default None until `set_classes` is called.
        words: Descriptions by class name; default None: none.

    Example:
        >>> source = open_imagenet("imagenet", split="val")
        >>> isinstance(source, ImagenetSplit), source.split
        (True, 'val')
    """

    def __init__(  # noqa: PLR0913 - the settings that a plan records
        self,
        root: Path,
        *,
        kind: str,
        split: str,
        folder: str = "",
        files: Iterable[FileFacts] | None = None,
        apart: bool = False,
        follow_links: bool = False,
        classes: Sequence[str] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(root)
        self.kind, self.split, self._folder, self._apart = kind, split, folder, apart
        self.links = Links(root, follow=follow_links) if files is None else None
        self._archives = SourceFiles(root, files or ())
        self.files = None if files is None else self._archives
        self._names = list(classes or [])
        self._words = dict(words or {})
        self._warnings: list[str] = []
        self._by_suffix = BySuffix()

    @property
    def top(self) -> Path:
        return self.files.first if self.files and not self._apart else self.root / self._folder

    @cached_property
    def parts(self) -> Mapping[str, list[Held]]:
        """What archives hold of each class, nothing if it is a folder; the name "" stands for images in one folder."""
        if self.kind == FLAT:
            return {"": []}
        if self.files is None:
            return {name: [] for name in list_top(self.top).folders}
        if self._apart:
            whole = ((unit, Member(b"", 0, file.size)) for unit, file in enumerate(self.files.files))
            return {Path(self.files.files[unit].name).stem: [(unit, tar)] for unit, tar in whole}
        parts = self._listing().splits.get(self.split)
        if parts is None:
            expected = "expected class tars (n01440764.tar, ...), <wnid>/<image> or ILSVRC2012's names"
            raise BuildError(f"{self.top}: contains no images of {self.split}; {expected}")
        return parts

    @property
    def is_flat(self) -> bool:
        """Whether its images are in one folder, so that a file must give their labels."""
        return "" in self.parts

    def present_classes(self) -> list[str]:
        """Return the classes that its images have, sorted by their bytes."""
        return self.labels.classes if self.is_flat else sorted(filter(None, self.parts), key=name_bytes)

    @cached_property
    def companions(self) -> CompanionFiles:
        """Finds the files that describe the split, in a zip, then in the folders around."""
        return CompanionFiles(self.top, self._list_content if self.files and not self._apart else None)

    @cached_property
    def labels(self) -> ValLabels:
        """The labels of images in one folder: those in their names, otherwise those of a file."""
        here = self.parts[""]
        names = [m.base_name for _, m in here] if here else map(name_bytes, list_top(self.top).files)
        wnids = {stem_of(name): wnid for name in names if (wnid := class_in_name(name))}
        return ValLabels("their names", wnids) if wnids else self.companions.val_labels()

    def set_classes(self, given: Sequence[str] | None, train: Sequence[str] | None) -> None:
        """Set the classes in label order, their descriptions, and warnings about them.

        The order is the first of these that is available: `given`; for val, `train`, as in torchvision; for val, the
        list of all classes, sorted; the classes that are present, sorted.

        Args:
            given: Class names in label order from the user, or None.
            train: For val, the classes of the train split, sorted, or None.

        Raises:
            BuildError: If the split has a class without a label, or `given` is invalid.
        """
        present, (origin, words) = self.present_classes(), self.companions.synsets()
        names: Sequence[str] = present if given is None else given
        owner = ""
        if given is None and self.split == "val" and train is not None:
            names, owner = train, "train"
        elif given is None and self.split == "val" and origin:
            names, owner = sorted(words, key=name_bytes), origin
        check_classes(self.top, names, present if given is not None else [])
        if unknown := sorted(set(present) - set(names), key=name_bytes):
            more = ", ..." if len(unknown) > 3 else ""
            raise BuildError(
                f"{self.top}: val has {len(unknown)} classes that {owner} lacks ({', '.join(unknown[:3])}{more}); "
                f"{ADVICE}"
            )
        self._names, self._words = list(names), {name: words[name] for name in names if name in words}
        self._warnings = []
        if owner == "train" and (missing := sorted(set(names) - set(present), key=name_bytes)):
            found = f"{len(names) - len(missing)} of the {len(names)} classes of train"
            self._warnings.append(f"val has {found} (first missing {missing[0]})")
        known, where = (names, "of train") if owner == "train" else (present, "present")
        if origin and given is None and set(known) != words.keys():
            first = min(set(known) - words.keys() or words.keys() - set(known), key=name_bytes)
            follow = owner if owner == origin else f"the classes {where}; {ADVICE}"
            self._warnings.append(
                f"the {len(known)} classes {where} are not the {len(words)} of {origin} "
                f"(first difference: {first}); labels follow {follow}"
            )

    @property
    def keeps_order(self) -> bool:
        """Whether rows keep the source's order unless a shuffle seed is given: for val only."""
        return self.split == "val"

    @property
    def found(self) -> str:
        where, archive = self._folder or self.top, self.top.name
        forms = {
            FOLDERS: f"class folders in {where}",
            FLAT: f"images in {where}",
            TARS: f"class tars in {archive}" if self._apart else archive,
            ZIP: f"{self.split} in {archive}",
        }
        labels = f", labels from {self.labels.origin}" if self.is_flat else ""
        return f"{forms[self.kind]}{labels}, {counted(len(self._names), 'class', 'classes')}"

    def options(self) -> Json:
        return {"split": self.split}

    def arguments(self) -> Json:
        own = {"kind": self.kind, "split": self.split, "folder": self._folder, "apart": self._apart}
        held = {"files": self.files.facts()} if self.files else {"follow_links": self.links and self.links.follow}
        return {**own, **held, "classes": self._names, "words": self._words}

    def fingerprint(self) -> object:
        return {**self.arguments(), "labels": self.labels.digest if self.is_flat else ""} if self.files else None

    def scan(self) -> Scan:
        """Return every image, by class in label order, then by name. Only headers of archives are read."""
        if self.is_flat and len(self.parts) > 1:
            advice = "unpack the archive and sort them"
            raise BuildError(f"{self.top}: images are both in one folder and in class folders; {advice}")
        if self.is_flat:
            entries: Iterable[Entry] = self.labels.sort(self._entries([""]), self._names)
        else:
            entries = self._entries(self._names)
        classes = tuple(ImageClass(name, self._words.get(name, "")) for name in self._names)
        return Scan(entries, classes, self._warnings_about)

    def _warnings_about(self, samples: int) -> list[str]:
        warnings, whole = [*self._warnings], WHOLE[self.split]
        wnids = sum(1 for name in self._names if WNID.fullmatch(name))
        if wnids >= MANY_CLASSES and samples != whole:
            warnings.append(f"{samples:,} of the {whole:,} images of ILSVRC2012 {self.split} are present")
        left_out = list_top(self.top).warnings() if self.kind == FOLDERS else []
        return [*warnings, *self._by_suffix.warnings(), *left_out]

    def read(self, entry: Entry) -> list[bytes]:
        if self.files is None or self.kind != ZIP:
            return super().read(entry)
        return [read_member(self.files.holder(entry.unit), entry.place, entry.size)]

    def _entries(self, names: Sequence[str]) -> Iterable[Entry]:
        """Return the images of these parts, with the index of their part as label."""
        if self.links is not None:
            found = system_of(self.root).walk(self.root, self._folder, names, self.links)
            if self.kind == FOLDERS:
                return self._by_suffix.images(found)
            return (entry for entry in found if is_image_name(os.path.basename(entry.name)))
        here = ((label, self.parts[name]) for label, name in enumerate(names) if name in self.parts)
        return chain.from_iterable(parallel_map(self.top, self._entries_of, here, TARS_AT_ONCE))

    def _entries_of(self, labeled: tuple[int, list[Held]]) -> list[Entry]:
        """Return the images of a class in archives, in the order of a tree walk."""
        label, part = labeled
        archive, found = self.kind.rpartition("-")[2], list[Entry]()
        for unit, held in groupby(part, key=itemgetter(0)):
            members = chain.from_iterable(map(self._members, held))
            shown = (member for member in members if not self.is_flat or is_image_name(member.base_name))
            found += [self._archives.entry(unit, member, label) for member in sort_members(shown, archive)]
        return found

    def _members(self, tar: Held) -> list[Member]:
        """Return the images in a file of tars: itself, or the members of a tar, with their places in the file."""
        unit, inner = tar
        if inner.name and not inner.name.endswith(b".tar"):
            return [inner]
        with self._archives.opened(unit) as file:
            if not inner.name:
                return list(list_tar(file))
            found = list_tar(file.part(inner.place, inner.size, name_text(inner.name)))
            return [m._replace(name=inner.name + b"/" + m.name, place=inner.place + m.place) for m in found]

    def _listing(self) -> ArchiveListing:
        return list_archives(self.root, tuple(self._archives.files))

    def _list_content(self, name: str) -> bytes | None:
        """Return the bytes of Kaggle's list of this name in an archive, or None; raise BuildError if it is damaged."""
        if name not in self._listing().lists:
            return None
        unit, member = self._listing().lists[name]
        try:
            if member.problem:
                raise Undecodable(member.problem)
            [data] = self.read(Entry(member.name, 0, member.size, 0, unit=unit, place=member.place))
            return data
        except Undecodable as error:
            raise BuildError(f"{self.top}: {name}: {error}; download it again") from None


Held = tuple[int, Member]  # the index of a file, and an image or a tar of images in it; b"": the file itself


class ArchiveListing(NamedTuple):
    """The contents of archives: images or class tars by split and class ("" for none), and Kaggle's lists by name."""

    splits: dict[str, dict[str, list[Held]]]
    lists: dict[str, Held]


@lru_cache(maxsize=4)
def list_archives(root: Path, files: tuple[SourceFile, ...]) -> ArchiveListing:
    """List zips or tars. Kaggle's zip takes 20 s.

    A folder in the archive names the split. Without it, the names of the image and of the archive do.
    """
    listing, held = ArchiveListing({}, {}), SourceFiles(root, files)
    for unit in range(len(files)):
        holder = held.holder(unit)
        is_zip = holder.path.endswith(".zip") or holder.read_at(0, 2) == b"PK"
        by_name = "val" if re.search("(?<![a-z])val", os.path.basename(holder.path)) else "train"
        for member in list_zip(holder) if is_zip else list_tar(holder):
            base, split = member.base_name, _SPLIT_FOLDER.search(member.name)
            folder = _CLASS_FOLDER.search(member.name)
            name = name_text(folder[1] or folder[2]) if folder else ""
            is_data = b"Annotations/" not in member.name  # Kaggle's boxes have the folders of the classes
            if base.endswith(b".cls") and not is_zip:
                src = Path(holder.path) if len(files) == 1 else Path(holder.path).parent
                advice = f"run `prep build webdataset` instead, with {quoted(src)} as SRC"
                raise BuildError(f"{holder.path}: WebDataset, because it contains {name_text(base)!r}; {advice}")
            if base in _LISTS:
                listing.lists[base.decode()] = (unit, member)
                continue
            if not is_zip and base.endswith(b".tar"):
                own, name = split[1].decode() if split else "train", name_text(base.removesuffix(b".tar"))
                if member.problem or name in listing.splits.get(own, {}):
                    found = member.problem or "twice in the tar"
                    raise BuildError(f"{holder.path}: {name}.tar: {found}; download it again")
            elif not (is_image_name(base) or (name and is_data)) or (is_zip and not split and not folder):
                continue
            elif name:
                own = by_name
            else:
                own = "train" if class_in_name(base) and not base.startswith(VAL_PREFIX.encode()) else "val"
            own = split[1].decode() if split else own
            listing.splits.setdefault(own, {}).setdefault(name, []).append((unit, member))
    held.close()
    return listing


def class_in_name(name: bytes) -> str:
    """Return the wnid in the name of an image; "" if there is none."""
    match = NAMED.fullmatch(stem_of(name)) if is_image_name(name) else None
    return match[1].decode() if match else ""
