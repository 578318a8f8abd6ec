"""ImageNet in every form: class folders, images in one folder, the tars as downloaded, and Kaggle's layout or zip.

`open_imagenet` finds the form of a split, and decides its classes and their label order. Archives are read without
unpacking.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from decodeonce.errors import BuildError
from decodeonce.formatting import counted
from decodeonce.prep.entry import Entry, Undecodable, name_bytes, name_text
from decodeonce.prep.listing import Listing
from decodeonce.prep.sources.archives import list_tar, list_zip, read_member, sort_members
from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.files import SUFFIXES, parallel_map, system_of
from decodeonce.prep.sources.folder import WNID, BySuffix, check_classes, list_top
from decodeonce.prep.sources.holders import Member
from decodeonce.prep.sources.imagenet_labels import MAPPING, SOLUTION, VAL_PREFIX, CompanionFiles, ValLabels
from decodeonce.prep.sources.safe_open import Links, expecting
from decodeonce.prep.sources.source_files import FileFacts, SourceFile, SourceFiles, source_file
from decodeonce.remote import source_path
from decodeonce.store.layout import Json
from decodeonce.store.manifest import ImageClass

Split = Literal["train", "val"]
AnySplit = Literal[Split, "auto"]
SPLITS: tuple[Split, ...] = get_args(Split)
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
_IMAGE_PATH = re.compile(rb"(?:(?:(?:ILSVRC/)?Data/)?CLS-LOC/)?(train|val)/(?:([^/]+)/)?.+")
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
    Labels of val images in one folder come from LOC_val_solution.csv or the development kit.

    Args:
        src: The folder that holds the dataset or one split of it, or an archive.
        split: "train", "val" or "auto" (default): train if `src` has it, otherwise val, otherwise `src` itself, as
            train, or as val if its name is "val" or "validation" or it holds val images.
        classes: Class names (wnids) in label order; default None: see above.
        follow_links: Whether links may lead out of `src`; default False.

    Returns:
        The source of the split, one of several classes for the different forms. Its `found` describes the form.

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
            return ImagenetSource(root, split=one, folder=one, follow_links=links.follow)
    own = "val" if os.path.basename(os.path.realpath(root)) in VAL_NAMES else "train"
    form = next(_forms_of(root, "", own, links), None)
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
    system = system_of(root)
    if system.is_file(root):
        file = source_file(root, "")
        with system.open(root) as holder:
            is_zip = holder.read_at(0, 2) == b"PK"
            first = None if is_zip else next(list_tar(holder), None)
        own = "train" if first is not None and first.name.endswith(b".tar") else "val"
        if is_zip:
            yield from _in_zips(root, split, [file])
        elif split == own:
            yield ImagenetTarSource(root, split=own, files=[file])
        return
    yield from _unpacked_or_tar(root, split, links)
    if system.is_folder(root):
        names = [name for name in list_top(root)[1] if name.endswith(".zip") and system.is_file(root / name)]
        yield from _in_zips(root, split, [source_file(root, name, links) for name in names])


def _unpacked_or_tar(root: Path, split: str, links: Links) -> Iterator[ImagenetSplit]:
    for base in BASES:
        yield from _forms_of(root, os.path.join(base, split), split, links)
    for suffix in ("", ".gz"):  # listing a compressed tar fails with advice
        name = TAR.format(split=split) + suffix
        if (root / name).is_file():
            yield ImagenetTarSource(root, split=split, files=[source_file(root, name, links)])


def _in_zips(root: Path, split: str, files: Sequence[SourceFile]) -> Iterator[ImagenetSplit]:
    zips = [(file, listing) for file in files if (listing := zip_listing(root, file)).splits]
    if len(zips) > 1:
        paths = f"{zips[0][1].files.first}, {zips[1][1].files.first}"
        raise BuildError(f"{paths}: both contain ImageNet; pass one of them as SRC")
    for file, listing in zips:
        if split in listing.splits:
            yield ImagenetZipSource(root, split=split, files=[file])


def _forms_of(root: Path, folder: str, split: str, links: Links) -> Iterator[ImagenetSplit]:
    """Yield the form of a folder: class folders, val images or class tars."""
    top = root / folder
    if not system_of(root).is_folder(top):
        return
    source = ImagenetSource(root, split=split, folder=folder, follow_links=links.follow)
    classes, names = source.listed
    images = [name for name in names if name.startswith(VAL_PREFIX)]
    tars = [name for name in names if name.endswith(".tar") and not name.startswith((".", "ILSVRC2012_"))]
    if classes:
        # A class tar without a folder next to class folders: its class would be missing.
        packed = [name for name in names if (match := _CLASS_TAR.fullmatch(name)) and match[1] not in classes]
        if others := images or packed:
            raise BuildError(
                f"{top}: {len(others)} val images or class tars (first {others[0]}) are next to {len(classes)} class "
                "folders; if sorting or unpacking them was interrupted, finish it; otherwise move them away"
            )
        yield source
    elif images:
        yield ImagenetFlatSource(root, split="val", folder=folder, follow_links=links.follow)
    elif split == "train" and tars:
        files = [source_file(root, os.path.join(folder, name), links) for name in tars]
        yield ImagenetTarSource(root, split=split, files=files, apart=True)


def _unrecognized(root: Path, split: str) -> BuildError:
    with expecting(root, f"expected a folder with {KNOWN}; or one of these archives"):
        if not system_of(root).is_file(root):
            system_of(root).list_folder(root)
    what = "no known form of ImageNet" if split == "auto" else f"no {split} split of ImageNet"
    return BuildError(f"{root}: {what} found; expected {KNOWN}; or another --split")


class ImagenetSplit(Source):
    """A split of ImageNet in one of its forms. Made by `open_imagenet`, which also sets the classes.

    Args:
        root: SRC.
        split: "train" or "val".
        classes: Class names (wnids) in label order; default None until `set_classes` is called.
        words: Descriptions by class name; default None: none.

    Example:
        >>> source = open_imagenet("imagenet", split="val")
        >>> isinstance(source, ImagenetSplit), source.split
        (True, 'val')
    """

    def __init__(
        self, root: Path, *, split: str, classes: Sequence[str] | None = None, words: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(root)
        self.split = split
        self._names = list(classes or [])
        self._words = dict(words or {})
        self._warnings: list[str] = []

    @property
    @abstractmethod
    def form(self) -> str:
        """The form and its path, for `found`."""

    @abstractmethod
    def present_classes(self) -> list[str]:
        """Return the classes that its images have, sorted by their bytes."""

    @property
    def is_flat(self) -> bool:
        """Whether its images are in one folder, so that a file must give their labels; default False."""
        return False

    @cached_property
    def companions(self) -> CompanionFiles:
        """Finds the files that describe the split."""
        return CompanionFiles(self.top)

    @cached_property
    def labels(self) -> ValLabels:
        """The labels of images in one folder."""
        return self.companions.val_labels()

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
        labels = f", labels from {self.labels.origin}" if self.is_flat else ""
        return f"{self.form}{labels}, {counted(len(self._names), 'class', 'classes')}"

    def listing(self) -> Listing:
        """Return every image, by class in label order, then by name."""
        listing = Listing.of(self._entries())
        classes = tuple(ImageClass(name, self._words.get(name, "")) for name in self._names)
        return replace(listing, classes=classes, warnings=self._warnings_about(len(listing)))

    @abstractmethod
    def _entries(self) -> Iterator[Entry]:
        """Yield every image, by class in label order, then by name."""

    def _warnings_about(self, samples: int) -> list[str]:
        warnings, whole = [*self._warnings], WHOLE[self.split]
        wnids = sum(1 for name in self._names if WNID.fullmatch(name))
        if wnids >= MANY_CLASSES and samples != whole:
            warnings.append(f"{samples:,} of the {whole:,} images of ILSVRC2012 {self.split} are present")
        return warnings

    def options(self) -> Json:
        return {"split": self.split}

    def arguments(self) -> Json:
        return {"split": self.split, "classes": self._names, "words": self._words}


class ImagenetSource(ImagenetSplit):
    """A split of ImageNet in class folders, listed like a `FolderSource`. Made by `open_imagenet`."""

    kind = "imagenet"
    links: Links

    def __init__(self, root: Path, *, folder: str = "", follow_links: bool = False, **facts: Any) -> None:
        super().__init__(root, **facts)
        self.folder = folder
        self.links = Links(root, follow=follow_links)
        self._by_suffix = BySuffix()

    @property
    def top(self) -> Path:
        return self.root / self.folder

    def _warnings_about(self, samples: int) -> list[str]:
        return [*super()._warnings_about(samples), *self._by_suffix.warnings()]

    @property
    def form(self) -> str:
        return f"class folders in {self.folder or self.top}"

    def arguments(self) -> Json:
        return {**super().arguments(), "folder": self.folder, "follow_links": self.links.follow}

    @cached_property
    def listed(self) -> tuple[list[str], list[str]]:
        """The names of the class folders, and those of the files next to them."""
        return list_top(self.top)

    def present_classes(self) -> list[str]:
        return self.listed[0]

    def _entries(self) -> Iterator[Entry]:
        check_classes(self.top, self._names, self.present_classes())
        return self._by_suffix.images(self._below(self._names))

    def _below(self, names: Sequence[str]) -> Iterator[Entry]:
        return system_of(self.root).walk(self.root, self.folder, names, self.links)


class ImagenetFlatSource(ImagenetSource):
    """Val images in one folder, with labels from Kaggle's list or the development kit."""

    kind = "imagenet-flat"
    is_flat = True

    @property
    def form(self) -> str:
        return f"images in {self.folder or self.top}"

    def present_classes(self) -> list[str]:
        return self.labels.classes

    def _entries(self) -> Iterator[Entry]:
        images = (entry for entry in self._below([""]) if is_image_name(os.path.basename(entry.name)))
        return iter(self.labels.sort(images, self._names))


def is_image_name(name: bytes) -> bool:
    """Return whether a file name has the suffix of an image and is not hidden."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(b".")


class ArchiveSource(ImagenetSplit):
    """A split in files that hold many images each. `files` are their names, sizes in bytes and mtimes in ns."""

    files: SourceFiles

    def __init__(self, root: Path, *, files: Iterable[FileFacts], **facts: Any) -> None:
        super().__init__(root, **facts)
        self.files = SourceFiles(root, files)

    @abstractmethod
    def parts(self) -> Mapping[str, object]:
        """Return what holds the images of each class; with the name "", what holds those in one folder."""

    @abstractmethod
    def _entries_of(self, labeled: tuple[int, Any]) -> list[Entry]:
        """Return the entries of a part with this label, in the order of a tree walk."""

    @property
    def is_flat(self) -> bool:
        return self.split == "val" and "" in self.parts()

    def arguments(self) -> Json:
        return {**super().arguments(), "files": self.files.facts()}

    def fingerprint(self) -> object:
        return {**self.arguments(), "labels": self.labels.digest if self.is_flat else ""}

    def present_classes(self) -> list[str]:
        return self.labels.classes if self.is_flat else sorted(filter(None, self.parts()), key=name_bytes)

    def _entries(self) -> Iterator[Entry]:  # only headers are read
        parts = self.parts()
        if not self.is_flat:
            here = ((label, parts[name]) for label, name in enumerate(self._names) if name in parts)
            return chain.from_iterable(parallel_map(self.top, self._entries_of, here, TARS_AT_ONCE))
        if len(parts) > 1:
            raise BuildError(
                f"{self.top}: val images are both in one folder and in class folders; unpack the zip and sort them"
            )
        return iter(self.labels.sort(self._entries_of((0, parts[""])), self._names))


ClassTar = tuple[int, Member]  # a tar of images: the index of a file, and the tar in it; b"": the file itself


class ImagenetTarSource(ArchiveSource):
    """ILSVRC2012_img_train.tar (a tar of class tars), a folder of class tars (`apart`), or ILSVRC2012_img_val.tar."""

    kind = "imagenet-tar"

    def __init__(self, root: Path, *, apart: bool = False, **facts: Any) -> None:
        super().__init__(root, **facts)
        self._apart = apart

    def arguments(self) -> Json:
        return {**super().arguments(), "apart": self._apart}

    @property
    def top(self) -> Path:
        return super().top.parent if self._apart else super().top

    @property
    def form(self) -> str:
        return f"class tars in {self.top.name}" if self._apart else self.top.name

    def parts(self) -> dict[str, ClassTar]:
        whole = [(unit, Member(b"", 0, file.size)) for unit, file in enumerate(self.files.files)]
        if self._apart:
            return {Path(self.files.files[unit].name).stem: (unit, tar) for unit, tar in whole}
        if self.split == "val":
            return {"": whole[0]}
        found: dict[str, ClassTar] = {}
        for member in self._members(whole[0]):
            if not member.name.endswith(b".tar"):
                continue
            name = name_text(member.base_name[: -len(".tar")])
            if name in found or member.problem:
                raise BuildError(f"{self.top}: {name}.tar: {member.problem or 'twice in the tar'}; download it again")
            found[name] = (0, member)
        if not found:
            raise BuildError(
                f"{self.top}: contains no class tars; expected those of the train split (n01440764.tar, ...)"
            )
        return found

    def read(self, entry: Entry) -> list[bytes]:
        return [self.files.read(entry.unit, entry.place, entry.size)]

    def _entries_of(self, labeled: tuple[int, ClassTar]) -> list[Entry]:
        label, tar = labeled
        members = [member for member in self._members(tar) if not self.is_flat or is_image_name(member.base_name)]
        return [self.files.entry(tar[0], member, label) for member in sort_members(members, "tar")]

    def _members(self, tar: ClassTar) -> list[Member]:
        """Return the members of a tar, with their names and places in the file."""
        unit, inner = tar
        with self.files.opened(unit) as file:
            if not inner.name:
                return list(list_tar(file))
            found = list_tar(file.part(inner.place, inner.size, name_text(inner.name)))
            return [m._replace(name=inner.name + b"/" + m.name, place=inner.place + m.place) for m in found]


class ImagenetZip:
    """The contents of a zip with Kaggle's layout: images by split and class ("" for none), and Kaggle's lists."""

    def __init__(self, root: Path, file: SourceFile) -> None:
        self.files = SourceFiles(root, [file])
        self.splits: dict[str, dict[str, list[Member]]] = {}
        self._lists: dict[str, Member] = {}
        for member in list_zip(self.files.holder(0)):
            if (match := _IMAGE_PATH.fullmatch(member.name)) is not None:
                split, name = match[1].decode(), name_text(match[2] or b"")
                if name or is_image_name(member.base_name):
                    self.splits.setdefault(split, {}).setdefault(name, []).append(member)
            elif member.base_name in _LISTS:
                self._lists[member.base_name.decode()] = member

    def content(self, name: str) -> bytes | None:
        """Return the bytes of Kaggle's list of this name, or None; raise BuildError if it cannot be read."""
        member = self._lists.get(name)
        if member is None:
            return None
        try:
            if member.problem:
                raise Undecodable(member.problem)
            return read_member(self.files.holder(0), member.place, member.size)
        except Undecodable as error:
            raise BuildError(f"{self.files.first}: {name}: {error}; download it again") from None


zip_listing = lru_cache(maxsize=4)(ImagenetZip)  # Kaggle's takes 20 s


class ImagenetZipSource(ArchiveSource):
    """A split in a zip, in class folders or, for val, in one folder."""

    kind = "imagenet-zip"

    @property
    def form(self) -> str:
        return f"{self.split} in {self.top.name}"

    @cached_property
    def companions(self) -> CompanionFiles:
        """Companion files in the zip, then in the folders around it."""
        return CompanionFiles(self.top, self._listing().content)

    def parts(self) -> dict[str, list[Member]]:
        return self._listing().splits.get(self.split, {})

    def read(self, entry: Entry) -> list[bytes]:
        return [read_member(self.files.holder(entry.unit), entry.place, entry.size)]

    def _listing(self) -> ImagenetZip:
        return zip_listing(self.root, self.files.files[0])

    def _entries_of(self, labeled: tuple[int, list[Member]]) -> list[Entry]:
        label, members = labeled
        return [self.files.entry(0, member, label) for member in sort_members(members, "zip")]
