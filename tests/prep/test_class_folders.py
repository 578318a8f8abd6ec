"""Names of folders that are no classes, or whose labels may surprise, and files next to class folders."""

import re
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.sources.folder import FolderSource
from decodeonce.store import open_store
from tests.command import prep, printed, run
from tests.images import jpeg
from tests.packages import need
from tests.prep.test_patterns import folders

VEHICLES = ["bullet_train/a/1.jpg", "steam_train/a/1.jpg", "crash_test/a/1.jpg", "car/a/1.jpg", "train/a/1.jpg"]
TINY = b"val_0.JPEG\tn01\t0\t32\t44\t62\nval_1.JPEG\tn02\t52\t55\t57\t59\n"


def warned(root: Path) -> list[str]:
    return FolderSource(root).listing().warnings


def write_file(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_splits_with_other_names_are_refused_with_a_command_for_each(tmp_path: Path) -> None:
    for number, (images, expected) in enumerate(
        (
            (["seg_train/a/1.jpg", "seg_test/a/1.jpg", "seg_pred/1.jpg"], "(seg_test, seg_train): seg_train contains"),
            (
                ["train_part1/a/1.jpg", "train_part2/b/1.jpg", "test/1.jpg"],
                "for test, pass {}/test as SRC and --no-labels;",
            ),
            (
                ["train2017/a/1.jpg", "val2017/a/1.jpg", "extra/1.jpg"],
                "for val, pass {}/val2017 as SRC;",
            ),
        )
    ):
        root = folders(tmp_path / str(number), *images)
        with pytest.raises(BuildError, match=re.escape(expected.format(root))):
            FolderSource(root)


def follow(advice: str, cwd: Path) -> list[str]:
    """Run the command in a piece of advice on SRC, and return SRC and the flags that it names."""
    found = re.fullmatch(r"(?:run: (.*), then )?pass (.*) as SRC(?: and (.*))?", advice)
    assert found is not None, advice
    command, src, flags = found.groups("")
    run("bash", "-c", command, cwd=cwd)
    return shlex.split(f"{src} {flags}")


@pytest.mark.parametrize("src", ["./-it's a/", "."])
def test_advice_on_splits_is_followed_with_the_flags_of_the_user(tmp_path: Path, src: str) -> None:
    cwd = tmp_path / "cwd"
    (root := cwd / src).mkdir(parents=True)
    for name in ("train_1/cat", "train_2/dog", "val_1/cat", "val_2/dog"):
        write_file(root / name / "1.dat", jpeg(20, 20))
    write_file(root / "test" / "1.dat", jpeg(20, 20))
    flags = ["--suffix", ".dat", "--size", 8]
    text = prep("build", "folder", src, "../x", *flags, cwd=cwd).stderr
    train, val, test = re.findall(r"for (?:train|val|test), (.*?)(?=; )", text)
    expected = {train: ["cat", "dog"], val: ["cat", "dog"], test: ["unlabeled"]}
    for number, (advice, names) in enumerate(expected.items()):
        printed("build", "folder", *follow(advice, cwd), f"../{number}", *flags, cwd=cwd)
        assert [one.name for one in open_store(tmp_path / str(number)).classes] == names
    for joined in ("ALL-train", "ALL-val"):
        shutil.rmtree(cwd / joined)
    write_file(root / "train_2/cat/2.dat", jpeg(20, 20))
    again = prep("build", "folder", src, "../x", *flags, cwd=cwd).stderr
    assert "for train, write a list of all images, whose own folders are then the classes (docs" in again


def test_advice_on_parts_of_a_dataset_is_followed(tmp_path: Path) -> None:
    for name in ("images/1.jpg", "masks/1.png"):
        write_file(tmp_path / "src" / name, jpeg(20, 20))
    text = prep("build", "folder", "src", "both", "--size", 8, cwd=tmp_path).stderr
    src = follow(text.strip().rpartition("to read only one, ")[2], tmp_path)
    printed("build", "folder", *src, "one", "--size", 8, cwd=tmp_path)
    assert [sample.source for sample in open_store(tmp_path / "one").samples] == ["1.jpg"]


def test_vehicles_are_classes(tmp_path: Path) -> None:
    assert warned(folders(tmp_path, *VEHICLES)) == []
    assert len(FolderSource(tmp_path).listing().classes) == len(VEHICLES)


def test_folders_of_systems_and_tools_hold_no_samples(tmp_path: Path) -> None:
    junk = ["$RECYCLE.BIN", "@eaDir", "lost+found", "System Volume Information", "__MACOSX", ".ipynb_checkpoints"]
    root = folders(tmp_path, "a/1.jpg", "a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "$5/1.jpg", "@home/1.jpg")
    folders(root, *(f"{name}/1.jpg" for name in [*junk, "#recycle"]))
    source = FolderSource(root)
    assert [cls.name for cls in source.listing().classes] == ["$5", "@home", "a"]
    assert [entry.text for entry in source.scan().entries] == ["$5/1.jpg", "@home/1.jpg", "a/1.jpg"]
    [warning] = warned(root)
    assert warning.startswith("7 folders left out, because no class has such a name ('#recycle', '$RECYCLE.BIN', ")
    assert len(list(FolderSource(root, no_labels=True).scan().entries)) == 3
    with pytest.raises(BuildError, match="the class list contains '@eaDir', which is not a class; remove it"):
        FolderSource(root, classes=["$5", "@eaDir", "@home", "a"]).scan()


def test_names_that_are_probably_no_classes_cause_a_warning(tmp_path: Path) -> None:
    for number, (images, expected) in enumerate(
        (
            (["images/1.jpg"], "the only class is images, so all labels are the same; to ignore it, pass --no-labels"),
            (["flowers/a/1.jpg"], "if its subfolders are the classes, pass {}/flowers as SRC"),
            (["images/1.jpg", "masks/1.png"], "classes have the names of parts of a dataset (images, masks); to read"),
            (["images_png/1.jpg", "masks_png/1.png"], "parts of a dataset (images_png, masks_png); to read only one"),
            (["train/1.jpg", "train_masks/1.png"], "classes have the names of parts of a dataset"),
            (["leftImg8bit/1.jpg", "gtFine/1.png"], "classes have the names of parts of a dataset"),
            (["SegmentationClass/1.png", "SegmentationObject/1.png"], "classes have the names of parts of a dataset"),
            ([f"images_{number:03}/1.png" for number in range(1, 13)], "classes have the names of parts of a dataset"),
            (["HAM_part_1/1.png", "HAM_part_2/1.png"], "classes have the names of parts of a dataset"),
            (
                ["patient1/s/1.png", "patient2/s/1.png"],
                "classes have the names of subjects or films (first patient1); if",
            ),
            (
                ["train/1.jpg", "val/1.jpg"],
                "classes have the names of splits (train, val); if they are splits, for train,",
            ),
            (
                ["0/1.jpg", "1/1.jpg", "10/1.jpg", "2/1.jpg"],
                "class names are sorted as text: label 2 is class 10; to sort",
            ),
            (["10/1.jpg", "9/1.jpg"], "class names are sorted as text: label 0 is class 10; to sort"),
            (["s1/1.jpg", "s10/1.jpg", "s2/1.jpg"], "class names are sorted as text: label 1 is class s10; to sort"),
        )
    ):
        root = folders(tmp_path / str(number), *images)
        [warning] = warned(root)
        assert expected.format(root) in warning
        assert FolderSource(root, classes=FolderSource(root).arguments()["classes"]).listing().warnings == []
    for names in (
        *(["00", "01", "10"], ["0", "1", "2"], ["10 a", "2 b"], ["GTI", "Golf"], ["with_mask", "without_mask"]),
        *(["part_1", "part_2"], ["clip art", "photo"], ["face masks", *map(str, range(10, 20))]),
    ):
        assert warned(folders(tmp_path / "quiet" / names[1], *(f"{name}/1.jpg" for name in names))) == []


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (
            ["a/1.jpg", "a/1_mask.png", "b/1.jpg"],
            "1 of 3 images may be masks or copies of others (first 'a/1_mask.png')",
        ),
        (
            ["a/b (1).png", "a/b (1)_mask.png", "a/b (1)_mask_1.png", "b/1.png"],
            "2 of 4 images may be masks or copies of others",
        ),
        (["a/1-mask.jpg", "a/1.jpg", "b/2 mask.png", "b/2.png"], "2 of 4 images may be masks or copies of others"),
        (
            ["a/1.jpg", "a/1.png", "b/2.jpg", "b/2.png"],
            "2 of 4 images may be masks or copies of others (first 'a/1.png')",
        ),
    ],
)
def test_masks_among_images_cause_a_warning(tmp_path: Path, images: list[str], expected: str) -> None:
    folders(tmp_path, *images)
    for source in (FolderSource(tmp_path), FolderSource(tmp_path, no_labels=True)):
        [warning] = source.listing().warnings
        assert warning.startswith(expected)
    assert warned(folders(tmp_path / "plain", "a/1.jpg", "a/10.jpg", "a/1_crop.jpg", "c/with-mask-2.jpg")) == []


def test_classes_without_images_and_empty_files_hide_no_warning(tmp_path: Path) -> None:
    root = folders(tmp_path, "small.store/images-00000.npy", "small.store/store.json")
    write_file(root / "train2017/1.jpg", jpeg(9, 9))
    (tmp_path / "notes").mkdir()
    (tmp_path / "train2017/1.txt").touch()
    assert [text.partition(",")[0] for text in warned(root)] == [
        "1 of 2 classes have no images (first 0",
        "1 file left out",
        "1 folder left out",
        "the only class is train2017",
    ]
    assert FolderSource(root).listing().rejects == []


def test_classes_of_classes_cause_a_warning_with_the_command_that_joins_them(tmp_path: Path) -> None:
    root = folders(tmp_path / "two words", "animals/cat/1.jpg", "animals/dog/1.jpg", "plants/rose/1.jpg")
    folders(root, "animals/.hidden/1.jpg", "animals/notes", "plants/notes")
    warning = warned(root)[-1]
    found = "all class folders hold folders and no images (animals/cat, animals/dog, plants/rose)"
    assert warning.startswith(f"{found}; if these are the classes, run: mkdir ALL && ")
    command, _, then = warning.partition("run: ")[2].partition(", then ")
    assert then == "pass ALL as SRC and --follow-links"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    joined = FolderSource(tmp_path / "ALL", follow_links=True)
    assert ([cls.name for cls in joined.listing().classes], joined.listing().warnings) == (["cat", "dog", "rose"], [])
    assert [(entry.text, entry.label) for entry in joined.scan().entries][1:] == [("dog/1.jpg", 1), ("rose/1.jpg", 2)]
    assert not any("no images" in text for text in FolderSource(root, classes=["animals", "plants"]).listing().warnings)
    advice = "if these are the classes, write a list of all images, whose own folders are then the classes"
    assert advice in warned(folders(root, "plants/cat/1.jpg"))[-1]  # two folders of this name
    deep = warned(folders(tmp_path / "deep", "animals/mammals/cat/1.jpg", "plants/flowers/rose/1.jpg", "empty/.keep"))
    assert "folders and no images (animals/mammals, plants/flowers); if" in deep[-1]
    for images in (
        ["a/images/1.jpg", "b/images/1.jpg"],
        ["a/x/1.jpg", "a/y/1.jpg", "b/1.jpg"],
        ["covid/images/1.jpg", "normal/masks/1.jpg"],
        ["bottle/train/1.jpg", "cable/test/1.jpg"],
        ["archery/v_archery_g00/1.jpg", "bowling/v_bowling_g00/1.jpg"],
        ["cat/left/1.jpg", "cat/right/1.jpg", "dog/left/1.jpg", "dog/right/1.jpg"],
        ["a/x/1.jpg", "a/1.dat", "a/2.dat", "a/3.dat", "b/y/1.jpg"],
    ):
        assert not any("folders and no images" in text for text in warned(folders(tmp_path / images[-1], *images)))
    dogs = folders(
        tmp_path / "wnids", "dogs/n02085620-Chihuahua/1.jpg", "dogs/@eaDir/1.jpg", "cats/n02123045-tabby/1.jpg"
    )
    folders(dogs, "cats/@eaDir/1.jpg", "__MACOSX/dogs/1.jpg", "cats/_odd/1.jpg", "cats/@home/1.jpg", "none/.keep")
    command = warned(dogs)[-1].partition("run: ")[2].partition(", then ")[0]
    subprocess.run(["bash", "-c", command], cwd=dogs, check=True)
    classes = ["@home", "_odd", "n02085620-Chihuahua", "n02123045-tabby"]
    assert [cls.name for cls in FolderSource(dogs / "ALL", follow_links=True).listing().classes] == classes
    many = folders(tmp_path / "many", *(f"{n}/{chr(97 + n)}/1.jpg" for n in range(17)))
    assert advice in warned(many)[0]


@pytest.mark.parametrize(
    ("val", "train"),
    [
        ("val", "train"),
        ("seg_test/seg_test", "seg_train/seg_train"),
        ("Testing", "Training"),
        ("val/images", "train/images"),
    ],
)
def test_val_with_other_classes_than_train_causes_a_warning(tmp_path: Path, val: str, train: str) -> None:
    folders(tmp_path / train, "a/1.jpg", "b/1.jpg", "c/1.jpg")
    [warning] = warned(folders(tmp_path / val, "a/1.jpg", "c/1.jpg"))
    assert warning.startswith(
        f"compared with {tmp_path}/{train}, this lacks 1 class (first b), so labels differ; pass the"
    )
    subprocess.run(["bash", "-c", commands_in(warning)], cwd=tmp_path, check=True)
    classes = (tmp_path / "classes.txt").read_text().splitlines()
    assert [entry.label for entry in FolderSource(tmp_path / val, classes=classes).scan().entries] == [0, 2]
    assert warned(folders(tmp_path / val, "b/1.jpg")) == []
    assert warned(tmp_path / train) == []
    [warning] = warned(folders(tmp_path / val, "d/1.jpg", "e/1.jpg"))
    assert f"compared with {tmp_path}/{train}, this has 2 more (first d), so labels differ" in warning
    files = FolderSource(tmp_path / val, classes=["README.txt", "a", "b", "c", "d", "e"]).listing().warnings
    assert any("this has 1 more (first README.txt)" in text for text in files)
    with pytest.raises(BuildError, match=r"/d: this class folder is not in the class list; add it at the end"):
        FolderSource(tmp_path / val, classes=classes).scan()
    listed = FolderSource(tmp_path / val, classes=[*classes, "d", "e"]).listing().warnings
    assert not any("compared with" in text for text in listed)


def commands_in(warning: str) -> str:
    return warning.partition("run: ")[2].partition(", and pass")[0]


def test_class_folder_that_no_list_can_name_is_to_be_renamed(tmp_path: Path) -> None:
    write_file(tmp_path / "src/a /1.jpg", jpeg(20, 20))
    (tmp_path / "classes.txt").write_text("a \n")
    done = prep("build", "folder", "src", "x", "--size", 8, "--classes", "classes.txt", cwd=tmp_path)
    assert done.stderr.endswith("a list has no names with blanks around them, so rename the folder\n")


def test_command_that_sorts_classes_by_number_works(tmp_path: Path) -> None:
    [warning] = warned(folders(tmp_path / "src", *(f"{number}/1.jpg" for number in range(12))))
    subprocess.run(["bash", "-c", commands_in(warning)], cwd=tmp_path, check=True)
    assert (tmp_path / "classes.txt").read_text().splitlines() == list(map(str, range(12)))


def test_file_of_labels_is_named_with_the_command_that_reads_it(tmp_path: Path) -> None:
    tiny, images = write_file(tmp_path / "tiny/val_annotations.txt", TINY).parent, tmp_path / "tiny/images"
    for number in range(2):
        write_file(images / f"val_{number}.JPEG", jpeg(20, 20))
    [warning, _] = warned(tiny)
    found = re.search("run `(.*)`, then `prep (.*)` instead, with (.*) as SRC and (.*)", warning)
    assert found is not None
    cut, build, src, flags = found.groups()
    subprocess.run(["bash", "-c", cut], cwd=tmp_path, check=True)
    printed(*shlex.split(f"{build} {src} OUT {flags}"), "--size", 8, cwd=tmp_path)
    assert [cls.name for cls in open_store(tmp_path / "OUT").classes] == ["n01", "n02"]
    write_file(images / "metadata.jsonl", b'{"file_name": "val_0.JPEG", "label": 1}\n')
    (tiny / "val_annotations.txt").write_text("See https://example.com for the license.")
    warning = next(text for text in warned(tiny) if "metadata.jsonl is not read" in text)
    assert "convert it to a CSV table (docs/how-to/data/csv.md)" in warning
    table = write_file(images / "labels.csv", b"path,label\nval_0.JPEG,1\n")
    advice = f"run `prep build list` instead, with {table} as SRC; name its columns as docs/how-to/data/csv.md says"
    assert any(text.endswith(advice) for text in warned(tiny))
    with pytest.raises(
        BuildError, match=re.escape(f"contains no class folders; expected {images}/<class>/<image>, ")
    ) as raised:
        FolderSource(images)
    assert str(raised.value).endswith(advice)


def test_archives_in_place_of_folders_are_named_with_what_to_do(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        archive.writestr("train/a/1.jpg", b"x")
    for src, message in (
        (tmp_path, "train.zip is not read; unpack it, and pass the folder with its images"),
        (tmp_path / "train.zip", f"a ZIP archive; unpack it first: unzip -q {tmp_path}/train.zip -d NEW"),
        (write_file(tmp_path / "a.xlsx", b"PK\3\4"), "a.xlsx: a spreadsheet; save it as CSV"),
    ):
        with pytest.raises(BuildError, match=re.escape(message)):
            FolderSource(src)


def test_class_list_that_no_folder_is_in_is_not_to_be_extended(tmp_path: Path) -> None:
    source = FolderSource(folders(tmp_path, "images/1.jpg"), classes=["n01", "n02"])
    with pytest.raises(BuildError, match="this class folder is not in the class list; nor is any other, so it is pr"):
        source.scan()


def test_command_that_unpacks_an_archive_can_be_pasted(tmp_path: Path) -> None:
    need({"unzip": "unzip"})
    with zipfile.ZipFile(tmp_path / "-it's a.zip", "w") as archive:
        archive.writestr("a/1.jpg", jpeg(20, 20))
    text = prep("build", "folder", "./-it's a.zip", "x", "--size", 8, cwd=tmp_path).stderr
    run("bash", "-c", text.partition("unpack it first: ")[2], cwd=tmp_path)
    assert "1 row in 1 class" in printed("build", "folder", "NEW", "x", "--size", 8, cwd=tmp_path)


def test_folders_that_only_look_like_those_of_tools_or_splits_are_classes(tmp_path: Path) -> None:
    source = FolderSource(folders(tmp_path, "recycle/1.jpg", "Recycler/1.jpg", "$RECYCLE.BIN/1.jpg", "RECYCLER/1.jpg"))
    assert [one.name for one in source.listing().classes] == ["Recycler", "recycle"]
    assert warned(folders(tmp_path / "covid", "test_neg/1.jpg", "test_pos/1.jpg")) == []


def test_command_that_lists_classes_leaves_out_what_is_no_class(tmp_path: Path) -> None:
    folders(tmp_path / "train", "a/1.jpg", "b/1.jpg", "@eaDir/1.jpg", "#recycle/1.jpg")
    [warning] = [text for text in warned(folders(tmp_path / "val", "b/1.jpg")) if "compared" in text]
    subprocess.run(["bash", "-c", commands_in(warning)], cwd=tmp_path, check=True)
    assert (tmp_path / "classes.txt").read_text().splitlines() == ["a", "b"]
