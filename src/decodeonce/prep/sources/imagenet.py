"""ImageNet as a tree: SRC/train/<wnid>/*.JPEG, and val in the same layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.sources.folder import FolderSource, class_folders

MAPPING = "LOC_synset_mapping.txt"
SPLITS = ("train", "val")


class ImagenetSource(FolderSource):
    """One split of an ImageNet tree; class names come from LOC_synset_mapping.txt where it lies in SRC."""

    kind = "imagenet"

    @property
    def keeps_order(self) -> bool:
        """Whether this is the val split, whose rows follow the source's order unless a seed is given."""
        return (self.folder or self.root.resolve().name) in ("val", "validation")

    def _descriptions(self) -> dict[str, str]:
        path = self.root / MAPPING
        if not path.is_file():
            return {}
        lines = path.read_text("utf-8", errors="replace").splitlines()
        pairs = (line.split(maxsplit=1) for line in lines)
        return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def open_imagenet(root: Path, *, split: str = "auto", classes: Sequence[str] | None = None) -> ImagenetSource:
    """The source of one split; "auto" takes SRC/train, else SRC/val, else SRC itself as the folder of classes."""
    return ImagenetSource(root, folder=_split_folder(root, split), classes=classes)


def _split_folder(root: Path, split: str) -> str:
    if split != "auto":
        if not (root / split).is_dir():
            raise BuildError(
                f"{root / split}: no such folder; expected {root / split}/<wnid>/*.JPEG, or another --split"
            )
        return split
    for name in SPLITS:
        if (root / name).is_dir():
            return name
    if not class_folders(root):
        raise BuildError(
            f"{root}: neither train, nor val, nor class folders in it; expected {root}/train/<wnid>/*.JPEG"
        )
    return ""
