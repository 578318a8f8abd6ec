"""ImageNet in every form: detection, labels, warnings and errors."""

import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources import files
from decodeonce.prep.sources import imagenet as imagenet_forms
from decodeonce.prep.sources.archives import list_tar, sort_members
from decodeonce.prep.sources.holders import Member, open_holder
from decodeonce.prep.sources.imagenet import AnySplit, ImagenetSplit, open_imagenet
from decodeonce.sources import Source, Undecodable
from decodeonce.store.class_words import ilsvrc2012
from decodeonce.store.hashing import hexdigest
from tests.forms import imagenet as forms
from tests.forms.form import Pic
from tests.forms.imagenet import CLS_LOC, DEVKIT, TRAIN_TAR, VAL_TAR, ZIP, Files, tar_bytes, write, zip_bytes
from tests.fuzz.zip import Pipe
from tests.images import jpeg, replaced

WNIDS = ["n01440764", "n01443537", "n01484850"]  # the ILSVRC2012_IDs are 449, 450 and 442
PICS = [
    Pic(WNIDS[label], f"{WNIDS[label]}_{number}", jpeg(24 + number, 20 + label, seed=10 * label + number))
    for number, labels in enumerate([(2, 0, 1), (1, 2, 0), (0, 2), (2,)])
    for label in labels
]
VAL = forms.as_val(PICS)


def train_tree(pics: list[Pic] = PICS) -> Files:
    return {f"train/{pic.wnid}/{pic.stem}.JPEG": pic.data for pic in pics}


def labels(source: Source) -> dict[str, str]:
    """Return the class of each image by its name without folders."""
    names = [cls.name for cls in source.listing().classes]
    return {os.path.basename(e.text): names[e.label] for e in source.scan().entries if not e.problem}


def problems(source: Source) -> dict[str, str]:
    return {entry.text: entry.problem for entry in source.scan().entries if entry.problem}


def warnings(source: Source) -> list[str]:
    return source.listing().warnings


EXPECTED = {f"{pic.stem}.JPEG": pic.wnid for pic in VAL}


# ---- detection


def test_train_and_unpacked_forms_are_preferred(tmp_path: Path) -> None:
    write(tmp_path, {VAL_TAR: tar_bytes(forms.flat(PICS, ".")), "LOC_val_solution.csv": forms.solution(PICS)})
    val = open_imagenet(tmp_path)
    assert val.top == tmp_path / VAL_TAR
    assert val.keeps_order
    assert val.found == f"{VAL_TAR}, labels from LOC_val_solution.csv, 3 classes"
    write(tmp_path, {TRAIN_TAR: tar_bytes(forms.class_tars(PICS))})
    assert open_imagenet(tmp_path).top == tmp_path / TRAIN_TAR
    write(tmp_path, train_tree())
    train = open_imagenet(tmp_path)
    assert train.top == tmp_path / "train"
    assert not train.keeps_order
    assert train.found == "class folders in train, 3 classes"
    assert open_imagenet(tmp_path, split="val").top == tmp_path / VAL_TAR


def test_kaggle_layout_is_found_from_any_of_its_folders(tmp_path: Path) -> None:
    for src, found in (
        ("", f"class folders in {CLS_LOC}/train, 3 classes"),
        ("ILSVRC", "class folders in Data/CLS-LOC/train, 3 classes"),
        ("ILSVRC/Data", "class folders in CLS-LOC/train, 3 classes"),
        (CLS_LOC, "class folders in train, 3 classes"),
        (f"{CLS_LOC}/train", f"class folders in {{root}}/{CLS_LOC}/train, 3 classes"),
        (f"{CLS_LOC}/val", f"images in {{root}}/{CLS_LOC}/val, labels from LOC_val_solution.csv, 3 classes"),
    ):
        write(tmp_path, forms.kaggle(PICS, "train") | forms.kaggle(PICS, "val"))
        source = open_imagenet(tmp_path / src)
        assert source.found == found.format(root=tmp_path)
        assert [cls.description for cls in source.listing().classes] == [f"word of {wnid}, another" for wnid in WNIDS]
        assert len(list(source.scan().entries)) == len(PICS)


def test_zip_may_be_src_or_in_src(tmp_path: Path) -> None:
    both = forms.kaggle(PICS, "train") | forms.kaggle(PICS, "val")
    write(tmp_path, {ZIP: zip_bytes(both), "other.zip": zip_bytes({"notes.txt": b"x"})})
    for root, prefix in ((tmp_path, f"{ZIP}/"), (tmp_path / ZIP, "")):
        train, val = open_imagenet(root), open_imagenet(root, split="val")
        assert train.found == f"train in {ZIP}, 3 classes"
        assert val.found == f"val in {ZIP}, labels from LOC_val_solution.csv, 3 classes"
        assert next(iter(train.scan().entries)).text == f"{prefix}{CLS_LOC}/train/n01440764/n01440764_0.JPEG"
        assert train.top == val.top == tmp_path / ZIP
        assert labels(val) == EXPECTED
    write(tmp_path, {"copy.zip": zip_bytes(both)})
    with pytest.raises(BuildError, match=r"copy.zip.*imagenet-object.*both contain ImageNet"):
        open_imagenet(tmp_path)


def test_member_names_are_paths(tmp_path: Path) -> None:
    write(tmp_path, {TRAIN_TAR: tar_bytes(forms.class_tars(PICS))})
    assert next(iter(open_imagenet(tmp_path).scan().entries)).text == f"{TRAIN_TAR}/n01440764.tar/n01440764_0.JPEG"
    assert next(iter(open_imagenet(tmp_path / TRAIN_TAR).scan().entries)).text == "n01440764.tar/n01440764_0.JPEG"


def named(pics: list[Pic], folder: str = "") -> Files:
    """Return images whose names end with their class, as at Hugging Face."""
    return {f"{folder}{pic.stem}_{pic.wnid}.JPEG": pic.data for pic in pics}


def by_stem(found: dict[str, str]) -> dict[str, str]:
    return {os.path.splitext(name)[0]: wnid for name, wnid in found.items()}


TRAIN = {pic.stem: pic.wnid for pic in PICS}
TREE = {f"{pic.wnid}/{pic.stem}.JPEG": pic.data for pic in PICS}
VAL_TREE = {f"{pic.wnid}/{pic.stem}.JPEG": pic.data for pic in VAL}


@pytest.mark.parametrize("folder", ["", "data/"])
def test_tars_of_hugging_face_are_read(tmp_path: Path, folder: str) -> None:
    parts = {f"{folder}train_images_{part}.tar": tar_bytes(named(PICS[part::2])) for part in range(2)}
    write(tmp_path, parts | {f"{folder}val_images.tar": tar_bytes(named(VAL))})
    train, val = open_imagenet(tmp_path), open_imagenet(tmp_path, split="val")
    assert by_stem(labels(train)) == {f"{stem}_{wnid}": wnid for stem, wnid in TRAIN.items()}
    assert by_stem(labels(val)) == {f"{pic.stem}_{pic.wnid}": pic.wnid for pic in VAL}
    for source, pics in ((train, PICS), (val, VAL)):
        pixels = {f"{pic.stem}_{pic.wnid}.JPEG": pic.data for pic in pics}
        assert {os.path.basename(e.text): source.read(e)[0] for e in source.scan().entries} == pixels
    assert val.found == "val_images.tar, labels from their names, 3 classes"
    one = open_imagenet(tmp_path / f"{folder}train_images_1.tar")
    assert (one.split, len(labels(one))) == ("train", len(PICS[1::2]))
    write(tmp_path, {f"{folder}train_images_2.tar.gz": tar_bytes(named(PICS[:1]), "w:gz")})
    with pytest.raises(BuildError, match=r"train_images_2\.tar\.gz: compressed with gzip, .*unpack it first: gzip -dc"):
        open_imagenet(tmp_path)


def test_images_with_names_that_have_their_class_are_read_from_one_folder(tmp_path: Path) -> None:
    write(tmp_path, named(PICS, "train/") | named(VAL, "val/"))
    assert set(labels(open_imagenet(tmp_path)).values()) == set(WNIDS)
    assert by_stem(labels(open_imagenet(tmp_path))) == {f"{stem}_{wnid}": wnid for stem, wnid in TRAIN.items()}
    assert labels(open_imagenet(tmp_path, split="val")) == {f"{pic.stem}_{pic.wnid}.JPEG": pic.wnid for pic in VAL}
    write(tmp_path / "original", {f"train/{pic.stem}.JPEG": pic.data for pic in PICS})
    assert by_stem(labels(open_imagenet(tmp_path / "original"))) == TRAIN
    write(tmp_path, train_tree())
    with pytest.raises(BuildError, match=r"9 images or class tars \(first n01440764_0_n01440764.JPEG\) are next to 3"):
        open_imagenet(tmp_path)


@pytest.mark.parametrize("pack", [tar_bytes, zip_bytes])
@pytest.mark.parametrize("top", ["", "imagenet-mini/"])
def test_archive_of_class_folders_is_read(tmp_path: Path, pack: Callable[[Files], bytes], top: str) -> None:
    suffix = "tar" if pack is tar_bytes else "zip"
    both = {
        f"{top}{split}/{name}": data
        for split, tree in (("train", TREE), ("val", VAL_TREE))
        for name, data in tree.items()
    }
    write(
        tmp_path,
        {f"both.{suffix}": pack(both), f"val.{suffix}": pack({top + name: VAL_TREE[name] for name in VAL_TREE})},
    )
    write(tmp_path, {f"train.{suffix}": pack({top + name: TREE[name] for name in TREE})})
    for name, split, expected in (
        (f"both.{suffix}", "train", TRAIN),
        (f"both.{suffix}", "val", by_stem(EXPECTED)),
        (f"train.{suffix}", "train", TRAIN),
        (f"val.{suffix}", "val", by_stem(EXPECTED)),
    ):
        source = open_imagenet(tmp_path / name, split="val" if split == "val" else "auto")
        assert (source.split, by_stem(labels(source))) == (split, expected)
    assert len(list(open_imagenet(tmp_path / f"both.{suffix}").scan().entries)) == len(PICS)


TRAIN_TARS, FLAT = forms.class_tars(PICS), forms.flat(PICS)
TRUTH = "ILSVRC2012_validation_ground_truth.txt"
TRAIN_ZIP = zip_bytes(forms.kaggle(PICS, "train"))
UNUSABLE: list[tuple[Files, str, AnySplit, str]] = [
    ({"notes.txt": b""}, "", "auto", r"expected train/<wnid>/\*.JPEG, .*Kaggle.*img_val.tar"),
    ({"x.zip": zip_bytes({"a/b.JPEG": b"x"})}, "x.zip", "val", "x.zip: no val split of ImageNet found; expected"),
    ({}, "nowhere", "auto", "nowhere: No such file or directory; expected a folder with .*img_train.tar"),
    ({TRAIN_TAR: tar_bytes(TRAIN_TARS)}, TRAIN_TAR, "val", f"{TRAIN_TAR}: no val split of .*or another --split"),
    ({VAL_TAR: tar_bytes(forms.flat(PICS, "."))}, VAL_TAR, "train", f"{VAL_TAR}: no train split of ImageNet found"),
    (FLAT | {"val/n01440764/a.JPEG": b"x"}, "", "auto", "9 images .* are next to 1 class folders; if sorting"),
    (FLAT, "", "auto", "LOC_val_solution.csv, ILSVRC2012_valid.*; looked in .*{root}, "),
    (FLAT | {TRUTH: b"1\n1001\n"}, "", "auto", f"{TRUTH}: line 2: expected an ILSVRC2012_ID, 1 to 1000"),
    (FLAT | {TRUTH: b"9" * 5000}, "", "auto", f"{TRUTH}: line 1: expected"),
    (FLAT | {"LOC_val_solution.csv": b"ImageId,P\nx,\n"}, "", "auto", "solution.csv: line 2: expected an image name"),
    (FLAT | {"LOC_val_solution.csv": b"x,n1 1\nx,n1 2\nx,n2 1\n"}, "", "auto", "line 3: x is n2, but n1 before"),
    (
        FLAT | {f"{DEVKIT}.tar.gz": tar_bytes({"readme.txt": b"read"}, "w:gz")},
        "",
        "auto",
        f"t12.tar.gz: contains no {TRUTH}; download the development kit again",
    ),
    (
        {"in-train-00.tar": tar_bytes({"0.jpg": b"x", "0.cls": b"7"})},
        "",
        "auto",
        r"WebDataset, because it contains '0\.cls'; run `prep build webdataset` instead, with {root}/in-train-00.tar",
    ),
    (
        {f"in-train-0{k}.tar": tar_bytes({f"{k}.jpg": b"x", f"{k}.cls": b"7"}) for k in range(2)},
        "",
        "auto",
        r"WebDataset, because it contains '0\.cls'; run `prep build webdataset` instead, with {root} as SRC$",
    ),
    (
        {"x.tar": tar_bytes({"cat/1.JPEG": b"x", "dog/2.JPEG": b"x"})},
        "x.tar",
        "auto",
        "have no labels; .*; if the folders in it are classes, unpack it, and run `prep build folder`",
    ),
    ({ZIP: TRAIN_ZIP[: len(TRAIN_ZIP) // 2]}, "", "auto", f"{ZIP}: not a zip, or truncated"),
    (
        {f"{TRAIN_TAR}.gz": tar_bytes(TRAIN_TARS, "w:gz")},
        "",
        "auto",
        "compressed with gzip, .* offset; unpack it first",
    ),
    (
        {TRAIN_TAR: tar_bytes({"n01440764.tar": tar_bytes({"a.JPEG": b"a"}, "w:gz")})},
        "",
        "auto",
        f"{TRAIN_TAR}: n01440764.tar: compressed with gzip, .*: gzip -dc FILE > NEW-n01440764.tar$",
    ),
]


@pytest.mark.parametrize(("contents", "src", "split", "message"), UNUSABLE)
def test_unusable_src_is_an_error(tmp_path: Path, contents: Files, src: str, split: AnySplit, message: str) -> None:
    write(tmp_path, contents)
    with pytest.raises(BuildError, match=message.replace("{root}", str(tmp_path))):
        list(open_imagenet(tmp_path / src, split=split).scan().entries)


def test_other_archives_and_images_next_to_class_folders_are_no_forms_of_it(tmp_path: Path) -> None:
    other = zip_bytes({f"n0144076{digit}/{digit}.JPEG": PICS[0].data for digit in range(2)})
    extra = {
        "old.zip": other,
        "train.tar.gz": tar_bytes(TREE, "w:gz"),
        "features_train.tar": tar_bytes({"a.npy": b"1"}),
    }
    write(tmp_path / "top", TREE | extra)
    assert by_stem(labels(open_imagenet(tmp_path / "top"))) == TRAIN
    write(tmp_path / "both", train_tree() | {"train/montage_n01440764.jpg": PICS[0].data})
    assert by_stem(labels(open_imagenet(tmp_path / "both"))) == TRAIN
    write(
        tmp_path / "val",
        {f"val/{name}": data for name, data in VAL_TREE.items()} | {"train.tar.gz": extra["train.tar.gz"]},
    )
    assert by_stem(labels(open_imagenet(tmp_path / "val", split="val"))) == by_stem(EXPECTED)
    both = {f"{split}/{name}": data for split in ("train", "val") for name, data in forms.class_tars(PICS).items()}
    write(tmp_path / "tars", {"all.tar": tar_bytes(both)})
    for split in ("train", "val"):
        assert by_stem(labels(open_imagenet(tmp_path / "tars/all.tar", split=split))) == TRAIN


def test_half_unpacked_class_tars_are_an_error(tmp_path: Path) -> None:
    packed = {f"train/{name}": data for name, data in forms.class_tars(PICS).items()}
    write(tmp_path, packed | train_tree([pic for pic in PICS if pic.wnid == "n01440764"]))
    message = r"2 .* class tars \(first n01443537.tar\) are next to 1 class folders; if sorting or unpacking"
    for root in (tmp_path, tmp_path / "train"):
        with pytest.raises(BuildError, match=message):
            open_imagenet(root)
    write(tmp_path, forms.flat(PICS) | {"LOC_val_solution.csv": forms.solution(PICS)})
    with pytest.raises(BuildError, match=message):  # otherwise val gets the labels of a third of train
        open_imagenet(tmp_path, split="val")


# ---- label order


def test_val_has_the_labels_of_train(tmp_path: Path) -> None:
    val = [pic for pic in PICS if pic.wnid != "n01443537"]
    write(tmp_path, train_tree() | {f"val/{pic.wnid}/{pic.stem}.JPEG": pic.data for pic in val})
    for root in (tmp_path, tmp_path / "val"):
        source = open_imagenet(root, split="val")
        assert [cls.name for cls in source.listing().classes] == WNIDS
        assert {entry.label for entry in source.scan().entries} == {0, 2}
        assert warnings(source) == ["val has 2 of the 3 classes of train (first missing n01443537)"]
    assert warnings(open_imagenet(tmp_path)) == []


def test_class_of_val_that_train_lacks_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, train_tree([pic for pic in PICS if pic.wnid == WNIDS[1]]) | forms.flat(PICS) | forms.devkit(PICS))
    with pytest.raises(BuildError, match=r"2 classes that train lacks \(n01440764, n01484850\); pass --classes FILE"):
        open_imagenet(tmp_path, split="val")
    given = open_imagenet(tmp_path, split="val", classes=WNIDS[::-1])
    assert ([cls.name for cls in given.listing().classes], labels(given)) == (WNIDS[::-1], EXPECTED)
    with pytest.raises(BuildError, match="n01484850: this class folder is not in the class list"):
        open_imagenet(tmp_path, split="val", classes=WNIDS[:2])


def test_missing_classes_of_train_cause_a_warning(tmp_path: Path) -> None:
    wnids = [*WNIDS, "n01440764a"]
    write(tmp_path, {TRAIN_TAR: tar_bytes(forms.class_tars(PICS)), "LOC_synset_mapping.txt": forms.mapping(wnids)})
    source = open_imagenet(tmp_path)
    message = (
        "the 3 classes present are not the 4 of LOC_synset_mapping.txt (first difference: n01440764a); "
        "labels follow the classes present; pass --classes FILE to define the label order"
    )
    assert warnings(source) == [message]
    assert [(cls.name, cls.description) for cls in source.listing().classes] == [
        (w, f"word of {w}, another") for w in WNIDS
    ]
    settled = open_imagenet(tmp_path, classes=sorted(wnids))
    assert warnings(settled) == []
    assert {entry.label for entry in settled.scan().entries} == {0, 2, 3}


def test_val_without_train_has_labels_of_list(tmp_path: Path) -> None:
    val = {f"val/{pic.wnid}/{pic.stem}.JPEG": pic.data for pic in PICS if pic.wnid != "n01440764"}
    write(tmp_path, val | {"LOC_synset_mapping.txt": forms.mapping(WNIDS)})
    source = open_imagenet(tmp_path)
    assert {entry.label for entry in source.scan().entries} == {1, 2}
    assert warnings(source) == [
        "the 2 classes present are not the 3 of LOC_synset_mapping.txt (first difference: n01440764); "
        "labels follow LOC_synset_mapping.txt"
    ]
    write(tmp_path, {"val/n99999999/x.JPEG": jpeg()})
    with pytest.raises(BuildError, match=r"1 classes that LOC_synset_mapping.txt lacks \(n99999999\)"):
        open_imagenet(tmp_path)


def test_missing_images_cause_a_warning() -> None:
    for classes, split, samples, expected in (
        (1000, "train", 1_281_167, []),
        (1000, "train", 1_200_000, ["1,200,000 of the 1,281,167 images of ILSVRC2012 train are present"]),
        (1000, "val", 49_999, ["49,999 of the 50,000 images of ILSVRC2012 val are present"]),
        (899, "val", 49_999, []),
    ):
        wnids = [f"n{k:08d}" for k in range(classes)]
        source = ImagenetSplit(Path("/"), kind="imagenet-tar", split=split, files=[], classes=wnids)
        assert source._warnings_about(samples) == expected


# ---- labels of val


@pytest.mark.parametrize("where", [f"{DEVKIT}/data", "data", ""])
def test_development_kit_is_found_in_all_its_places(tmp_path: Path, where: str) -> None:
    write(tmp_path, forms.flat(PICS) | {os.path.join(where, Path(k).name): v for k, v in forms.devkit(PICS).items()})
    source = open_imagenet(tmp_path)
    assert labels(source) == EXPECTED
    assert [(cls.name, cls.description) for cls in source.listing().classes] == sorted(ilsvrc2012().items())
    assert warnings(source) == [
        "the 3 classes present are not the 1000 of ILSVRC2012 (first difference: n01491361); labels follow ILSVRC2012",
        "9 of the 50,000 images of ILSVRC2012 val are present",
    ]


def test_train_has_descriptions_if_development_kit_is_present(tmp_path: Path) -> None:
    write(tmp_path, train_tree() | {f"{DEVKIT}.tar.gz": b"an incomplete download, which is not read"})
    source = open_imagenet(tmp_path)
    assert [cls.description for cls in source.listing().classes] == [ilsvrc2012()[wnid] for wnid in WNIDS]
    assert warnings(source) == [
        "the 3 classes present are not the 1000 of ILSVRC2012 (first difference: n01491361); labels follow the classes "
        "present; pass --classes FILE to define the label order"
    ]


def test_table_of_ilsvrc2012_matches_development_kit() -> None:
    # All 1,000 wnids in their order, as compared with three published lists and the labels of 100 val images.
    assert hexdigest("\n".join(ilsvrc2012()).encode()) == "d35418f45752d108"
    # All descriptions, equal to those of WordNet 3.0's data.noun and of timm's imagenet_synset_to_lemma.txt.
    assert hexdigest("\n".join(ilsvrc2012().values()).encode()) == "066e9b211ac3ec23"


def test_development_kit_is_read_from_its_tar(tmp_path: Path) -> None:
    kit = {f"{DEVKIT}.tar.gz": tar_bytes(forms.devkit(PICS), "w:gz")}
    write(tmp_path, {VAL_TAR: tar_bytes(forms.flat(PICS, "."))} | kit)
    for root in (tmp_path, tmp_path / VAL_TAR):
        assert labels(open_imagenet(root)) == EXPECTED
        assert open_imagenet(root).found == f"{VAL_TAR}, labels from {DEVKIT}.tar.gz, 1,000 classes"
    os.truncate(tmp_path / f"{DEVKIT}.tar.gz", 30)
    with pytest.raises(BuildError, match=r"devkit_t12.tar.gz: cannot be unpacked at byte"):
        open_imagenet(tmp_path)


def test_kaggle_list_is_preferred_to_development_kit(tmp_path: Path) -> None:
    other = forms.solution(PICS).replace(b"ILSVRC2012_val_00000003,n0", b"ILSVRC2012_val_00000003,n1")
    write(tmp_path, forms.flat(PICS) | forms.devkit(PICS) | {"LOC_val_solution.csv": other})
    source = open_imagenet(tmp_path, classes=sorted({*WNIDS, "n11440764", "n11443537", "n11484850"}))
    assert labels(source)["ILSVRC2012_val_00000003.JPEG"].startswith("n1")


def test_images_without_labels_are_rejects(tmp_path: Path) -> None:
    write(tmp_path, forms.flat(PICS) | {"LOC_val_solution.csv": forms.solution(PICS)})
    (tmp_path / "val/ILSVRC2012_val_00000002.JPEG").rename(tmp_path / "val/ILSVRC2012_val_00000777.JPEG")
    (tmp_path / "val/.ILSVRC2012_val_00000005.JPEG").touch()
    (tmp_path / "val/valprep.sh").touch()
    source = open_imagenet(tmp_path)
    assert problems(source) == {"val/ILSVRC2012_val_00000777.JPEG": "no label in LOC_val_solution.csv"}
    tarred = {VAL_TAR: tar_bytes({path.name: path.read_bytes() for path in (tmp_path / "val").iterdir()})}
    source = open_imagenet(write(tmp_path / "tarred", tarred | {"LOC_val_solution.csv": forms.solution(PICS)}))
    assert problems(source) == {f"{VAL_TAR}/ILSVRC2012_val_00000777.JPEG": "no label in LOC_val_solution.csv"}


# ---- tars


def listed(path: Path) -> list[tuple[bytes, str]]:
    with open_holder(path) as holder:
        return [(m.name, m.problem) for m in list_tar(holder)]


def test_listing_reads_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pics = [Pic(f"n{k % 5:08d}", f"n{k % 5:08d}_{k}", os.urandom(20_000)) for k in range(100)]
    write(tmp_path, {TRAIN_TAR: tar_bytes(forms.class_tars(pics))})
    source, read, pread = open_imagenet(tmp_path), [], os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        read.append(len(data := pread(fd, size, offset)))
        return data

    monkeypatch.setattr(os, "pread", counted)
    assert len(list(source.scan().entries)) == 100
    assert len(read) < 100 + 5 * 4 + 4  # one round trip per image, and a few per tar
    assert sum(read) <= 513 * len(read)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_with_long_names_hidden_files_folders_and_links(tmp_path: Path, format: int) -> None:
    long = "deep/" * 30 + "ünï" * 20 + ".JPEG"
    with tarfile.open(tmp_path / "x.tar", "w", format=format) as tar:
        for name, data in [("./a.JPEG", b"a"), (long, b"bb"), (".hid", b"c"), ("x/._a.JPEG", b"d"), ("none.JPEG", b"")]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, kind in [
            ("PaxHeaders.12/a", tarfile.REGTYPE),
            ("folder", tarfile.DIRTYPE),
            ("soft.JPEG", tarfile.SYMTYPE),
            ("hard.JPEG", tarfile.LNKTYPE),
            ("fifo.JPEG", tarfile.FIFOTYPE),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.JPEG"
            tar.addfile(info)
    assert listed(tmp_path / "x.tar") == [
        (b"a.JPEG", ""),
        (long.encode(), ""),
        (b"none.JPEG", "empty file"),
        (b"soft.JPEG", "a link in the tar"),
        (b"hard.JPEG", "a link in the tar"),
        (b"fifo.JPEG", "not a regular file"),
    ]


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_sparse_file_in_tar_is_a_problem(tmp_path: Path, format: str) -> None:
    with open(tmp_path / "sparse.JPEG", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    command = ["tar", "-C", str(tmp_path), f"--format={format}", "-S", "-cf", str(tmp_path / "x.tar"), "sparse.JPEG"]
    subprocess.run(command, check=True)
    assert listed(tmp_path / "x.tar") == [(b"sparse.JPEG", "a sparse file in the tar")]


PACKERS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz"}


@pytest.mark.parametrize("mode", PACKERS)
def test_command_that_unpacks_a_tar_works(mode: str, tmp_path: Path) -> None:
    if not shutil.which(PACKERS[mode]):
        pytest.skip(f"{PACKERS[mode]} is not installed")
    plain = tar_bytes({"a.JPEG": b"a" * 700})
    for name in ("a b.tar", f"a b.tar.{mode}"):  # with and without the suffix of the packer
        (tmp_path / name).write_bytes(tar_bytes({"a.JPEG": b"a" * 700}, f"w:{mode}"))
        with pytest.raises(BuildError, match=f"compressed with {PACKERS[mode]}, ") as error:
            listed(tmp_path / name)
        command = str(error.value).partition("unpack it first: ")[2]
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
        assert (tmp_path / "NEW-a b.tar").read_bytes() == plain


def test_unpacked_val_is_val(tmp_path: Path) -> None:
    members = {f"{wnid}/{wnid}_1.JPEG": b"a" for wnid in ("n01440764", "n01443537")}
    (tmp_path / "val.tar.gz").write_bytes(tar_bytes(members, "w:gz"))
    with pytest.raises(BuildError, match="compressed with gzip, ") as error:
        open_imagenet(tmp_path, split="val")
    command = str(error.value).partition("unpack it first: ")[2]
    (tmp_path / "cwd").mkdir()
    subprocess.run(["bash", "-c", command], cwd=tmp_path / "cwd", check=True)
    for split in ("auto", "val"):
        assert open_imagenet(tmp_path / "cwd/NEW-val.tar", split=split).split == "val"


def test_truncated_or_invalid_tar_is_an_error(tmp_path: Path) -> None:
    tarred = tar_bytes({"a.JPEG": b"a" * 700, "b.JPEG": b"b" * 1024})
    for data, message in (
        (b"", r"truncated: ends at byte 0"),
        (tarred[:900], r"truncated: ends at byte 900, expected at least 1536 \(a.JPEG\)"),
        (tarred[:1536], r"truncated: ends at byte 1536, expected at least 2048 \(the empty block that ends a tar"),
        (tarred[:3071], r"truncated: ends at byte 3071, expected at least 3072 \(b.JPEG\)"),
        (tarred[:3072], r"truncated: ends at byte 3072, expected at least 3584 \(the empty"),
        (tarred[:1536] + b"x" * 4096, "damaged: no tar header at byte 1536"),
        (b"x" * 4096, "not a tar, or damaged"),
        *((tar_bytes({"a": b"a"}, f"w:{mode}"), f"compressed with {by}") for mode, by in PACKERS.items()),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "a Git LFS pointer .*; run: git lfs pull"),
    ):
        (tmp_path / "x.tar").write_bytes(data)
        with pytest.raises(BuildError, match=f"x.tar: {message}"):
            listed(tmp_path / "x.tar")


def test_threads_on_network_file_system_give_same_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {TRAIN_TAR: tar_bytes(forms.class_tars(PICS))})
    source = open_imagenet(tmp_path)
    expected = list(source.scan().entries)
    monkeypatch.setattr(files, "network_file_system", lambda top: "NFS")
    monkeypatch.setattr(imagenet_forms, "TARS_AT_ONCE", 2)
    assert list(source.scan().entries) == expected


# ---- zips


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("zip64", [False, True])
def test_zip_written_to_pipe_and_zip64_are_read(tmp_path: Path, method: int, zip64: bool) -> None:
    data = {f"train/n01440764/{k}.JPEG": os.urandom(size) + b"a" * size for k, size in enumerate((1, 3000, 2_000_000))}
    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", method) as archive_:
        for name, content in data.items():
            with archive_.open(name, "w", force_zip64=zip64) as member:
                member.write(content)
    source = open_imagenet(write(tmp_path, {"x.zip": pipe.getvalue()}))
    assert [source.read(entry)[0] for entry in source.scan().entries] == list(data.values())
    damaged = bytearray(pipe.getvalue())
    damaged[len(damaged) // 2] ^= 1
    write(tmp_path / "damaged", {"x.zip": bytes(damaged)})
    assert len(undecodable(open_imagenet(tmp_path / "damaged"))) == 1


def undecodable(source: Source) -> dict[str, str]:
    """Return the entries that cannot be read, with the reason."""
    found = {}
    for entry in source.scan().entries:
        try:
            source.read(entry)
        except Undecodable as reason:
            found[os.path.basename(entry.text)] = str(reason)
    return found


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_bytes_in_zip_are_rejected(tmp_path: Path, method: int) -> None:
    whole = zip_bytes(forms.kaggle(PICS, "train"), method)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive_:
        infos = {os.path.basename(info.filename): info for info in archive_.infolist()}
    damaged = bytearray(whole)
    data, header = infos["n01443537_0.JPEG"], infos["n01484850_1.JPEG"]
    start = data.header_offset + 30 + len(data.filename)
    damaged[start : start + 8] = b"\xff" * 8
    damaged[header.header_offset] = 0
    found = undecodable(open_imagenet(write(tmp_path, {ZIP: bytes(damaged)})))
    assert found.keys() == {"n01443537_0.JPEG", "n01484850_1.JPEG"}
    assert all(reason.startswith("damaged zip: ") for reason in found.values())


def test_members_that_cannot_be_rows_have_a_reason(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive_:
        archive_.writestr("train/n01440764/0.JPEG", b"x")
        archive_.writestr("train/n01440764/1.JPEG", b"x", zipfile.ZIP_BZIP2)
        archive_.writestr("train/n01440764/2.JPEG", b"")
        archive_.writestr("train/n01440764/._3.JPEG", b"x")
        archive_.writestr("train/n01440764/folder/", b"")
        link = zipfile.ZipInfo("train/n01440764/4.JPEG")
        link.external_attr = 0o120777 << 16
        archive_.writestr(link, b"0.JPEG")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive_.writestr("train/n01440764/0.JPEG", b"later")
        archive_.writestr("train/n01440764/ü.JPEG", b"x")
    data = bytearray(out.getvalue())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1  # the last one, encrypted
    source = open_imagenet(write(tmp_path, {"x.zip": bytes(data)}))
    entries = {(entry.text.rpartition("/")[2], entry.problem) for entry in source.scan().entries}
    assert entries == {
        ("0.JPEG", "occurs twice in the zip; the later one is used"),
        ("0.JPEG", ""),
        ("1.JPEG", "compressed by method 12 (bzip2), expected stored or deflated"),
        ("2.JPEG", "empty file"),
        ("4.JPEG", "a link in the zip"),
        ("ü.JPEG", "encrypted in the zip"),
    }
    assert [source.read(entry)[0] for entry in source.scan().entries if not entry.problem] == [b"later"]


def test_unreadable_list_in_zip_is_an_error(tmp_path: Path) -> None:
    splits: tuple[tuple[str, AnySplit], ...] = (("LOC_synset_mapping.txt", "train"), ("LOC_val_solution.csv", "val"))
    for name, split in splits:
        files = {name: b"something to compress " * 50} | train_tree() | forms.flat(PICS)
        whole = zip_bytes(files, zipfile.ZIP_DEFLATED)
        listed_flags = whole.index(b"PK\x01\x02") + 8
        for at, byte, message in (
            (30 + len(name), 0xFF, "damaged zip: "),
            (0, 0, "damaged zip: no local header at byte 0"),
            (6, whole[6] | 1, "encrypted in the zip"),
            (8, zipfile.ZIP_LZMA, r"compressed by method 14 \(lzma\), expected stored or deflated"),
            (listed_flags, whole[listed_flags] | 1, "encrypted in the zip"),
        ):
            write(tmp_path, {"k.zip": replaced(whole, at, bytes((byte,)))})
            with pytest.raises(BuildError, match=f"k.zip: {name}: {message}.*; download it again"):
                open_imagenet(tmp_path, split=split)


def test_members_have_the_order_of_a_tree_walk() -> None:
    names = [b"c/sub.JPEG", b"c/sub/x.JPEG", b"c/sub-1.JPEG", b"c/a.JPEG"]
    ordered = sort_members([Member(name, 0, 1) for name in names], "tar")
    assert [member.name for member in ordered] == sorted(names, key=lambda name: name.split(b"/"))
    # sub/ comes before sub-1 and sub.JPEG, although "-" and "." sort before "/"
    assert ordered[1].name == b"c/sub/x.JPEG"


def test_classes_are_sorted_by_bytes(tmp_path: Path) -> None:
    wnids = [os.fsdecode(name) for name in ("\N{GRINNING FACE}".encode(), b"\xfcber", b"zebra")]
    pics = [Pic(wnid, f"{number}", jpeg(20, 20, seed=number)) for number, wnid in enumerate(reversed(wnids))]
    write(tmp_path / "tar", {TRAIN_TAR: tar_bytes(forms.class_tars(pics))})
    names = [cls.name for cls in open_imagenet(tmp_path / "tar").listing().classes]
    assert names == sorted(wnids, key=os.fsencode) != sorted(wnids)


def test_zip_member_with_large_extra_field_is_read(tmp_path: Path) -> None:
    info = zipfile.ZipInfo(f"{CLS_LOC}/train/n01440764/a.JPEG")
    info.extra = b"\xfe\xca" + (60_000).to_bytes(2, "little") + bytes(60_000)
    with zipfile.ZipFile(tmp_path / ZIP, "w") as archive:
        archive.writestr(info, b"data", zipfile.ZIP_DEFLATED)
    source = open_imagenet(tmp_path)
    assert [source.read(entry)[0] for entry in source.scan().entries] == [b"data"]
