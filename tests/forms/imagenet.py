"""Every form in which ImageNet is distributed."""

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from decodeonce.prep.sources.base import Source
from decodeonce.prep.sources.imagenet import AnySplit, open_imagenet
from decodeonce.store.class_words import ilsvrc2012
from tests.forms.folder import write_folder
from tests.forms.form import Form, Pic

CLS_LOC = "ILSVRC/Data/CLS-LOC"
ZIP = "imagenet-object-localization-challenge.zip"
TRAIN_TAR, VAL_TAR, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12"
Files = dict[str, bytes]


def val_order(pics: Sequence[Pic]) -> list[Pic]:
    """Return the images in the order of their val numbers, which is not by class but by stem within a class."""
    return sorted(pics, key=lambda pic: (pic.stem.rpartition("_")[2], pic.wnid[::-1]))


def val_stem(pics: Sequence[Pic], pic: Pic) -> str:
    """Return the name of an image in val, without suffix."""
    return f"ILSVRC2012_val_{val_order(pics).index(pic) + 1:08d}"


def as_val(pics: Sequence[Pic]) -> list[Pic]:
    """Return the images with their names in val."""
    return [pic._replace(stem=val_stem(pics, pic)) for pic in pics]


def wnids_of(pics: Iterable[Pic]) -> list[str]:
    return sorted({pic.wnid for pic in pics})


def solution(pics: Sequence[Pic]) -> bytes:
    """Return LOC_val_solution.csv. Its lines are unordered, and some images have several boxes."""
    lines = [
        f"{pic.stem},{pic.wnid} 85 1 499 272 {f'{pic.wnid} 1 2 3 4 ' * (n % 2)}" for n, pic in enumerate(as_val(pics))
    ]
    return "\n".join(["ImageId,PredictionString", *reversed(lines), ""]).encode()


def mapping(wnids: Sequence[str]) -> bytes:
    """Return LOC_synset_mapping.txt."""
    return "".join(f"{wnid} word of {wnid}, another\n" for wnid in wnids).encode()


def truth(pics: Sequence[Pic]) -> bytes:
    """Return ILSVRC2012_validation_ground_truth.txt."""
    numbers = {wnid: number for number, wnid in enumerate(ilsvrc2012(), 1)}
    return "".join(f"{numbers[pic.wnid]}\n" for pic in val_order(pics)).encode()


def devkit(pics: Sequence[Pic]) -> Files:
    """Return the file of the development kit that is read, and two that are not."""
    others = {f"{DEVKIT}/readme.txt": b"read", f"{DEVKIT}/data/meta.mat": b"MATLAB 5.0 MAT-file"}
    return {f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt": truth(pics)} | others


def tar_bytes(files: Files, mode: str = "w", **options: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, **options) as tar:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def class_tars(pics: Sequence[Pic]) -> Files:
    """Return a tar per class. Neither classes nor images are sorted."""
    return {
        f"{wnid}.tar": tar_bytes({f"{pic.stem}.JPEG": pic.data for pic in reversed(pics) if pic.wnid == wnid})
        for wnid in reversed(wnids_of(pics))
    }


def kaggle(pics: Sequence[Pic], split: str) -> Files:
    """Return the contents of Kaggle's zip: images, lists, and annotations, which are not read."""
    files = {"LOC_synset_mapping.txt": mapping(wnids_of(pics)), "LOC_val_solution.csv": solution(pics)}
    for pic in pics if split == "train" else as_val(pics):
        folder = f"train/{pic.wnid}" if split == "train" else "val"
        files[f"{CLS_LOC}/{folder}/{pic.stem}.JPEG"] = pic.data
        files[f"ILSVRC/Annotations/CLS-LOC/{folder}/{pic.stem}.xml"] = b"<xml>"
    files[f"{CLS_LOC}/test/ILSVRC2012_test_00000001.JPEG"] = pics[0].data
    return files


def zip_bytes(files: Files, method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def write(root: Path, files: Files) -> Path:
    """Write the files below root and return root."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def flat(pics: Sequence[Pic], folder: str = "val") -> Files:
    """Return val images in one folder."""
    return {f"{folder}/{pic.stem}.JPEG": pic.data for pic in as_val(pics)}


def _tree(root: Path, pics: Sequence[Pic], split: str) -> Path:
    write_folder(root / split, pics if split == "train" else as_val(pics))
    return root


def _form(name: str, split: AnySplit, make: Callable[[Path, Sequence[Pic]], Path]) -> Form:
    def opened(root: Path, pics: Sequence[Pic]) -> Source:
        return open_imagenet(make(root / "imagenet", pics), split=split)

    return Form(f"imagenet-{split}-{name}", opened, stem_of=val_stem if split == "val" else lambda pics, pic: pic.stem)


def _zip(split: str, method: int) -> Callable[[Path, Sequence[Pic]], Path]:
    return lambda root, pics: write(root, {ZIP: zip_bytes(kaggle(pics, split), method)})


def _devkit_tar(pics: Sequence[Pic]) -> Files:
    return {f"{DEVKIT}.tar.gz": tar_bytes(devkit(pics), "w:gz"), **_mapping(pics)}


def _mapping(pics: Sequence[Pic]) -> Files:
    return {"LOC_synset_mapping.txt": mapping(wnids_of(pics))}


FORMS = [
    _form("tree", "train", lambda root, pics: _tree(root, pics, "train")),
    _form("tree", "val", lambda root, pics: _tree(root, pics, "val")),
    _form("flat-csv", "val", lambda root, pics: write(root, flat(pics) | {"LOC_val_solution.csv": solution(pics)})),
    _form("flat-devkit", "val", lambda root, pics: write(root, flat(pics) | devkit(pics) | _mapping(pics))),
    _form("kaggle", "train", lambda root, pics: write(root, kaggle(pics, "train"))),
    _form("kaggle", "val", lambda root, pics: write(root, kaggle(pics, "val"))),
    _form("zip-stored", "train", _zip("train", zipfile.ZIP_STORED)),
    _form("zip-deflated", "train", _zip("train", zipfile.ZIP_DEFLATED)),
    _form("zip", "val", lambda root, pics: _zip("val", zipfile.ZIP_DEFLATED)(root, pics) / ZIP),
    _form("tar", "train", lambda root, pics: write(root, {TRAIN_TAR: tar_bytes(class_tars(pics))})),
    _form("tar-itself", "train", lambda root, pics: write(root, {"any": tar_bytes(class_tars(pics))}) / "any"),
    _form("class-tars", "train", lambda root, pics: write(root / "train", class_tars(pics)).parent),
    _form("tar", "val", lambda root, pics: write(root, {VAL_TAR: tar_bytes(flat(pics, "."))} | _devkit_tar(pics))),
]
