"""Exports keep pixels and labels, and are complete or absent."""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodeonce.errors import BuildError, DecodeonceError, Stopped, StoreError
from decodeonce.prep.export.export import ExportSettings, _node, export_store
from decodeonce.prep.recipe import Recipe
from decodeonce.sources import FolderSource, open_webdataset
from decodeonce.store import Store, disk, open_store, part_rows, stage_store
from decodeonce.store.table import SAMPLE_COLUMNS, Sample, line, sample_lines
from tests.images import make_image, tree_bytes
from tests.prep.building import build_in_process
from tests.store.signing import flip, flip_row, replace_file, resign
from tests.stores import make_store, random_images

FOLDER = ExportSettings("folder")
TARS = ExportSettings("webdataset", shard_rows=100)
COUNT = 600  # rows: three blocks of files, or six tars


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("export") / "train.store", random_images(COUNT), shard_rows=250)


@pytest.fixture(scope="module")
def uninterrupted(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of uninterrupted exports by one process, by form."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for settings in (FOLDER, TARS):
        export_store(open_store(store), folder / settings.form, settings)
    return {settings.form: tree_bytes(folder / settings.form) for settings in (FOLDER, TARS)}


def make_named_store(root: Path, classes: list[str], sources: list[str]) -> Store:
    """Make a store with these class names and one row per source name; row k has label k modulo the classes."""
    make_store(root, random_images(len(sources)), classes=len(classes))
    names = [name.replace("\ud800", "?") for name in classes]
    samples = [
        Sample(row, row % len(classes), names[row % len(classes)], source, 9, 9, "", f"{row:016x}")
        for row, source in enumerate(sources)
    ]
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines(map(astuple, samples)))
    resign(root, lambda facts: facts.update(classes=[{"name": name, "description": ""} for name in classes]))
    return open_store(root)


def pixels(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(data)))


def test_build_from_exported_folders_gives_the_same_rows_and_labels(tmp_path: Path) -> None:
    images = random_images(40, shape=(24, 32, 3))
    labels = np.arange(40) % 3 * 2  # classes 1 and 3 have no rows but keep their labels
    source = open_store(make_store(tmp_path / "store", images, labels, classes=5))
    progress: list[int] = []
    done = export_store(source, tmp_path / "new/out", FOLDER, progress=progress.append)
    assert (done.images, done.classes, done.sorted_classes, sum(progress)) == (40, 5, True, 40)
    assert os.listdir(tmp_path / "new") == ["out"]
    build_in_process(FolderSource(tmp_path / "new/out"), tmp_path / "again", Recipe(height=24, width=32))
    again = open_store(tmp_path / "again")
    assert [cls.name for cls in again.classes] == [cls.name for cls in source.classes]
    rows = [int(sample.source.split("/")[1][:8]) for sample in again.samples]
    assert sorted(rows) == list(range(40))
    np.testing.assert_array_equal(again.images[:], images[rows])
    np.testing.assert_array_equal(again.labels, labels[rows])


def test_tars_follow_the_webdataset_layout(store: Path, uninterrupted: dict[str, dict[str, bytes]]) -> None:
    source, files = open_store(store), uninterrupted["webdataset"]
    assert list(files) == ["classes.txt", *(f"shard-{k:06d}.tar" for k in range(6))]
    assert files["classes.txt"] == b"class0\nclass1\nclass2\n"
    row = 0
    for data in list(files.values())[1:]:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = tar.getmembers()
            found = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode, m.isreg()) for m in members}
            assert found == {(0, 0, 0, "", "", 0o644, True)}
            names = [member.name for member in members]
            contents = [tar.extractfile(member).read() for member in members]  # type: ignore[union-attr]
        for k in range(0, len(names), 3):
            assert names[k : k + 3] == [f"{row:08d}.png", f"{row:08d}.cls", f"{row:08d}.json"]
            np.testing.assert_array_equal(pixels(contents[k]), source.images[row])
            assert contents[k + 1] == str(source.labels[row]).encode()
            label, digest = row % 3, f"{row:016x}"
            facts = {"row": row, "label": label, "class": f"class{label}", "source": f"class{label}/{row}.jpg"}
            assert json.loads(contents[k + 2]) == {**facts, "width": 9, "height": 9, "box": "", "digest": digest}
            row += 1
    assert row == COUNT


@pytest.mark.parametrize(("quality", "subsampling", "tolerance"), [(95, 1, 4.0), (89, 2, 6.0)])
def test_exported_jpegs_are_close_to_the_rows(tmp_path: Path, quality: int, subsampling: int, tolerance: float) -> None:
    images = np.stack([np.asarray(make_image(64, 48, seed=seed)) for seed in range(3)])
    source = open_store(make_store(tmp_path / "store", images))
    export_store(source, tmp_path / "out", ExportSettings("folder", quality=quality))
    for row in range(3):
        with Image.open(tmp_path / f"out/class{row}/{row:08d}_{row}.jpg") as image:
            assert image.format == "JPEG"
            assert image.layer[1][1:3] == (1, 1)  # type: ignore[attr-defined]
            assert image.layer[0][1] == subsampling  # type: ignore[attr-defined]
            assert np.abs(np.asarray(image).astype(int) - images[row]).mean() < tolerance
    export_store(source, tmp_path / "tars", ExportSettings("webdataset", quality=quality))
    with tarfile.open(tmp_path / "tars/shard-000000.tar") as tar:
        assert tar.getnames()[:3] == ["00000000.jpg", "00000000.cls", "00000000.json"]


def test_gray_rows_become_gray_images_and_two_channels_are_refused(tmp_path: Path) -> None:
    gray, two = (make_store(tmp_path / str(n), random_images(3, shape=(5, 4, n))) for n in (1, 2))
    export_store(open_store(gray), tmp_path / "out", FOLDER)
    with Image.open(tmp_path / "out/class1/00000001_1.png") as image:
        assert image.mode == "L"
        np.testing.assert_array_equal(np.asarray(image), open_store(gray).images[1, :, :, 0])
    with pytest.raises(StoreError, match="rows have 2 channels"):
        export_store(open_store(two), tmp_path / "no", FOLDER)


@pytest.mark.parametrize("settings", [FOLDER, TARS])
def test_bytes_do_not_depend_on_workers(
    store: Path, uninterrupted: dict[str, dict[str, bytes]], tmp_path: Path, settings: ExportSettings
) -> None:
    progress: list[int] = []
    export_store(open_store(store), tmp_path / "out", settings, workers=2, progress=progress.append)
    assert sum(progress) == COUNT
    assert tree_bytes(tmp_path / "out") == uninterrupted[settings.form]
    assert os.listdir(tmp_path) == ["out"]


def test_equal_long_and_unusual_source_names_become_unique_file_names(tmp_path: Path) -> None:
    longs = [f"{letter}{'é' * 150}" for letter in ("", "!")]  # about 300 bytes; one is cut within a character
    sources = ["x/a.jpg", "y/a.png", "a.tar/b", ".hidden.jpg", "x/\udcff\n\t.jpg", "z/", *longs]
    source = make_named_store(tmp_path / "store", ["only"], sources)
    export_store(source, tmp_path / "out", FOLDER)
    found = sorted(os.listdir(os.fsencode(tmp_path / "out/only")))
    assert [int(name[:8]) for name in found] == list(range(len(sources)))
    stems = [name[9:-4] for name in found]
    assert stems[:6] == [b"a", b"a", b"b", b".hidden", b"\xff\n\t", b""]
    assert [len(stem) for stem in stems[6:]] == [190, 191]
    assert all(long.startswith(stem.decode()) for stem, long in zip(stems[6:], longs, strict=True))
    for row, name in enumerate(found):
        data = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"out/only", name))).read_bytes()
        np.testing.assert_array_equal(pixels(data), source.images[row])


def test_unusual_class_names_are_exported_and_their_order_reported(tmp_path: Path) -> None:
    classes = ["b", "a\nb", "\udcff", "ü", "c" * 255, " "]
    source = make_named_store(tmp_path / "store", classes, [f"{k}.jpg" for k in range(12)])
    assert not export_store(source, tmp_path / "out", FOLDER).sorted_classes
    again = FolderSource(tmp_path / "out", classes=classes)
    assert sorted(entry.label for entry in again.entries()) == sorted([*range(6), *range(6)])


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "/tmp", ".hidden", "a\0b", "a" * 256, "\ud800", "twin"])
def test_class_name_that_cannot_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    source = make_named_store(tmp_path / "store", ["twin", name], ["0.jpg", "1.jpg"])
    with pytest.raises(StoreError, match=r"store: class 1 is '.*--as webdataset"):
        export_store(source, tmp_path / "out", FOLDER)
    assert os.listdir(tmp_path) == ["store"]
    facts = json.loads(exported_json(tmp_path / "store", tmp_path / "tars", 1))
    assert facts["class"] in (name, source.samples[1].class_name)  # here a class name is only text in a member


@pytest.mark.parametrize("workers", [1, 2])
def test_damaged_row_is_not_exported(store: Path, tmp_path: Path, workers: int) -> None:
    shutil.copytree(store, tmp_path / "damaged")
    flip_row(tmp_path / "damaged", 270)
    for settings in (FOLDER, TARS) if workers == 1 else (TARS,):
        with pytest.raises(StoreError, match=r"damaged: row 270 does not match its checksum; run `prep verify"):
            export_store(open_store(tmp_path / "damaged"), tmp_path / settings.form, settings, workers=workers)
        assert not (tmp_path / settings.form).exists()


def test_read_error_stops_the_export(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pread(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(disk, "pread", pread)
    with pytest.raises(Stopped, match=r"images-00000\.npy: Input/output error; run the same command again"):
        export_store(open_store(store), tmp_path / "out", FOLDER)


def test_damaged_small_file_or_part_is_refused(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    for name in ("samples.tsv", "checksums.npy", "labels.npy"):
        flip(tmp_path / "store" / name, (store / name).stat().st_size - 2)
        with pytest.raises(StoreError, match=f"{name}: damaged: xxh3_64 is"):
            export_store(open_store(tmp_path / "store"), tmp_path / "out", FOLDER)
        flip(tmp_path / "store" / name, (store / name).stat().st_size - 2)
    stage_store(open_store(store), tmp_path / "part", rows=part_rows(COUNT, 0, 2))
    with pytest.raises(StoreError, match=r"holds rows 0\.\.299 of 600.*export from the whole store"):
        export_store(open_store(tmp_path / "part"), tmp_path / "out", FOLDER)
    assert not (tmp_path / "out").exists()


def test_existing_dest_is_not_changed(store: Path, tmp_path: Path) -> None:
    source = open_store(store)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "folder", "link"):
        with pytest.raises(DecodeonceError, match=f"{name}: already exists; choose another DEST"):
            export_store(source, tmp_path / name, TARS)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link"]
    with pytest.raises(DecodeonceError, match="is inside the store to be exported"):
        export_store(source, store / "deep/out", TARS)
    export_store(source, tmp_path / "out", TARS)
    with pytest.raises(DecodeonceError, match="out: already exists"):
        export_store(source, tmp_path / "out", TARS)


def test_error_leaves_nothing(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir_on_full_disk(path: Path) -> None:
        if path.name == "class2":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        mkdir(path)

    def interrupt(rows: int) -> None:
        if rows:
            raise InterruptedError

    mkdir = disk.mkdir
    monkeypatch.setattr(disk, "mkdir", mkdir_on_full_disk)
    with pytest.raises(OSError, match="No space left"):
        export_store(open_store(store), tmp_path / "out", FOLDER)
    monkeypatch.undo()
    with pytest.raises(InterruptedError):
        export_store(open_store(store), tmp_path / "out", FOLDER, progress=interrupt)
    assert os.listdir(tmp_path) == []


def test_unfinished_export_is_removed_or_refused(
    store: Path, uninterrupted: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f"other node-{ended.pid}", f"{_node()}-{os.getpid()}"):
        (tmp_path / f"out.tmp-{name}").mkdir()
        with pytest.raises(
            DecodeonceError, match=r"exports to .*, or was killed there; wait .* run: rm -r .*/out\.tmp"
        ):
            export_store(open_store(store), tmp_path / "out", TARS)
        (tmp_path / f"out.tmp-{name}").rmdir()
    left = tmp_path / f"out.tmp-{_node()}-{ended.pid}"
    (left / "class0").mkdir(parents=True)
    (left / "shard-000009.tar").write_bytes(b"half")
    (tmp_path / "out.tmp-mine").mkdir()
    export_store(open_store(store), tmp_path / "out", TARS)
    assert tree_bytes(tmp_path / "out") == uninterrupted["webdataset"]
    assert sorted(os.listdir(tmp_path)) == ["out", "out.tmp-mine"]


def test_export_stops_if_a_worker_dies(store: Path, uninterrupted: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    def export_with(number: signal.Signals) -> None:
        def kill_one(rows: int) -> None:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            if rows:
                os.kill(int(children[-1]), number)

        export_store(open_store(store), tmp_path / "out", TARS, workers=2, progress=kill_one)

    with pytest.raises(BuildError, match=r"out: a worker process crashed \(exit status -11\); see the messages above"):
        export_with(signal.SIGSEGV)
    with pytest.raises(Stopped, match=r"out: a worker process was killed \(SIGKILL\); run .* more memory or fewer"):
        export_with(signal.SIGKILL)
    export_store(open_store(store), tmp_path / "out", TARS)
    assert tree_bytes(tmp_path / "out") == uninterrupted["webdataset"]


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="one of folder, webdataset"):
        ExportSettings("zip")  # type: ignore[arg-type]
    for options, message in (({"quality": 0}, "1 to 100"), ({"shard_rows": 0}, "at least 1")):
        with pytest.raises(ValueError, match=message):
            ExportSettings("webdataset", **options)


def test_class_list_and_columns_are_exported(tmp_path: Path) -> None:
    boxes = np.arange(24, dtype=np.float32).reshape(6, 4)
    columns = {"boxes": boxes, "box_labels": np.array([[1, 0, -1]] * 6, "<i4")}
    make_store(tmp_path / "store", random_images(6), columns=columns)
    resign(tmp_path / "store", lambda facts: facts.update(box_classes=["cat", "dog"]))
    source = open_store(tmp_path / "store")
    facts = json.loads(exported_json(tmp_path / "store", tmp_path / "tars", 2))
    assert facts["boxes"] == [8.0, 9.0, 10.0, 11.0]
    assert (facts["box_labels"], facts["box_classes"]) == ([1, 0, -1], ["dog", "cat"])
    names = (tmp_path / "tars/classes.txt").read_text().split()
    again = open_webdataset(str(tmp_path / "tars"), classes=names)
    build_in_process(again, tmp_path / "again", Recipe(height=8, width=6))
    assert [cls.name for cls in open_store(tmp_path / "again").classes] == [cls.name for cls in source.classes]
    np.testing.assert_array_equal(open_store(tmp_path / "again").labels, source.labels)


def exported_json(store: Path, dest: Path, row: int) -> bytes:
    """Export a store as tars and return the json of a row."""
    export_store(open_store(store), dest, TARS)
    with tarfile.open(dest / "shard-000000.tar") as tar:
        return tar.extractfile(f"{row:08d}.json").read()  # type: ignore[union-attr]


def test_columns_named_like_facts_of_a_row_are_exported_and_so_are_the_facts(tmp_path: Path) -> None:
    columns = {name: np.arange(6) * 10 for name in ("width", "class", "class_")}
    make_store(tmp_path / "store", random_images(6), columns=columns)
    facts = json.loads(exported_json(tmp_path / "store", tmp_path / "tars", 2))
    assert (facts["width"], facts["width_"], facts["height"]) == (20, 9, 9)
    assert (facts["class"], facts["class_"], facts["class__"]) == (20, 20, "class2")
    source = open_webdataset(str(tmp_path / "tars"), column=list(columns))
    assert [entry.values for entry in source.entries()] == [(10 * row, 10 * row, 10 * row) for row in range(6)]


def test_numbers_that_json_cannot_hold_are_exported_as_null(tmp_path: Path) -> None:
    columns = {"score": np.array([0.5, np.nan, -np.inf]), "pair": np.array([[1, np.inf]] * 3, np.float32)}
    make_store(tmp_path / "store", random_images(3), columns=columns)
    encoded = exported_json(tmp_path / "store", tmp_path / "tars", 1)
    facts = json.loads(encoded, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (facts["score"], facts["pair"]) == (None, [1.0, None])
    for name, found in (("score", "found nothing"), ("pair", r"found \[1\.0, None\]")):
        with pytest.raises(BuildError, match=f"shard-000000.tar: .*: column '{name}': {found}, expected"):
            list(open_webdataset(str(tmp_path / "tars"), column=[name]).entries())


@pytest.mark.parametrize("name", ["m" * 100, "é" * 50])
def test_masks_with_long_names_are_exported_and_read_again(tmp_path: Path, name: str) -> None:
    masks = np.arange(3 * 8 * 6, dtype=np.uint8).reshape(3, 8, 6)
    store = open_store(make_store(tmp_path / "store", random_images(3), paired={name: masks}))
    export_store(store, tmp_path / "tars", TARS)
    source = open_webdataset(str(tmp_path / "tars"), paired={"mask": f"{name}.png"})
    read = [pixels(source.read_all(entry)[1]) for entry in source.entries()]
    np.testing.assert_array_equal(read, masks)
