"""WebDataset shards: samples, labels, and the errors for invalid shards."""

import gzip
import os
import random
import re
import shlex
import tarfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.listing import Entry
from decodeonce.prep.sources import open_source
from decodeonce.prep.sources.files import LOCAL_FILES, STAT_THREADS
from decodeonce.prep.sources.webdataset import WebdatasetSource, open_webdataset
from decodeonce.store import open_store
from decodeonce.store.manifest import DATA_OFFSET
from tests.command import prep, printed
from tests.forms.webdataset import sample, write_tar
from tests.images import jpeg
from tests.store.signing import flip

IMAGE = jpeg(20, 10)


def shard(root: Path, *parts: list[tuple[str, bytes]], name: str = "a-0.tar") -> str:
    return str(write_tar(root / name, chain(*parts), "w:gz" if name.endswith("gz") else "w"))


def test_label_is_in_cls_txt_or_json(tmp_path: Path) -> None:
    for parts, label, found in (
        ({"cls": 1}, "1", "cls"),
        ({"cls": " 1\n", "json": {"label": 0}, "txt": "a cat"}, "1", "cls"),
        ({"txt": "a cat", "json": {"label": 0}}, "0", "json (key label)"),
        ({"txt": "cat\n", "json": {"width": 7}}, "cat", "txt"),
        ({"cls": "größe"}, "größe", "cls"),
        ({"json": {"cls": 3, "class": "cat"}}, "3", "json (key cls)"),
        ({"json": {"class": "cat"}}, "cat", "json (key class)"),
        ({"json": {"width": 7, "label": "cat", "class": 1}}, "cat", "json (key label)"),
    ):
        source = open_webdataset(shard(tmp_path, sample("k", IMAGE, **parts)))
        (entry,) = source.scan().entries
        assert (source.listing().classes[entry.label].name, entry.problem) == (label, "")
        assert source.found == f"1 shard (a-0.tar), labels from {found}"


NO_IMAGE = "no image in the sample, which has "
INVALID = "no label: json: not a valid JSON object"
OTHER = "no label: json (key label): {}, expected a number or a text"
FIRST_DOT = "a sample's files are equal up to the first dot"


def test_sample_is_a_row_or_has_a_reason(tmp_path: Path) -> None:
    for files, name, problem in (
        ([("a/k.jpg", IMAGE), ("a/k.cls", b"")], b"a/k.jpg", "no label: cls: empty file"),
        ([("k.jpg", IMAGE), ("k.json", b"{")], b"k.jpg", INVALID),
        ([("k.jpg", IMAGE), ("k.json", b'{"label": ' + b"[" * 60_000)], b"k.jpg", INVALID),
        ([("k.jpg", IMAGE), ("k.json", b'{"label": ' + b"9" * 5000 + b"}")], b"k.jpg", INVALID),
        ([("k.jpg", IMAGE), ("k.json", b"[7]")], b"k.jpg", INVALID),
        ([("k.jpg", IMAGE), ("k.json", b'{"label": "\\ud800"}')], b"k.jpg", OTHER.format(r"'\ud800'")),
        ([("k.jpg", IMAGE), ("k.json", b'{"label": [1, 2]}')], b"k.jpg", OTHER.format("[1, 2]")),
        ([("k.jpg", IMAGE), ("k.json", b'{"label": true}'), ("k.txt", b"a")], b"k.jpg", OTHER.format("True")),
        ([("k.jpg", IMAGE), ("k.json", b'{"label": null}')], b"k.jpg", OTHER.format("None")),
        ([("k.jpg", IMAGE), ("k.json", b'{"width": 7}')], b"k.jpg", "no label"),
        (
            [("k.jpg", IMAGE), ("k.json", b'{"label": "k"' + b" " * (1 << 16) + b"}")],
            b"k.jpg",
            "no label: json: 65,550 bytes, expected at most 65,536",
        ),
        (
            [("k.jpg", IMAGE), ("k.txt", b"x" * 131072)],
            b"k.jpg",
            "no label: txt: 131,072 bytes, expected at most 65,536",
        ),
        ([("k.cls", b"1"), ("k.exr", IMAGE)], b"k.cls", f"{NO_IMAGE}cls, exr; {FIRST_DOT}"),
        (
            [("k.cls", b"1"), ("k.mask.png", IMAGE)],
            b"k.mask.png",
            f"{NO_IMAGE}cls, mask.png; {FIRST_DOT}; to read mask.png, pass --image-suffix mask.png",
        ),
        ([("k.jpg", IMAGE), ("k.my.cls", b"1")], b"k.jpg", "no label; to read my.cls, pass --label-suffix my.cls"),
        ([("k.cls", b"1"), ("k.webp", IMAGE), ("k.tiff", IMAGE)], b"k.webp", ""),
        ([("k.jpg", IMAGE), ("k.jpg", IMAGE), ("k.cls", b"1")], b"k.jpg", "two images in the sample"),
        ([("k.jpg", IMAGE), ("k.cls", b"1"), ("k.cls", b"2")], b"k.jpg", "two labels in the sample"),
        ([("k.jpg", b""), ("k.cls", b"1")], b"k.jpg", "empty file"),
        ([("k.png", b"mask"), ("k.JPG", IMAGE), ("k.cls", b"1")], b"k.JPG", ""),  # which is preferred to the PNG
        ([("k.jpg", IMAGE), ("k.cls", b"-1")], b"k.jpg", "label -1, expected 0 or more"),
    ):
        (entry,) = open_webdataset(shard(tmp_path, files)).scan().entries
        assert (entry.name, entry.problem) == (b"a-0.tar/" + name, problem)


def test_advised_suffixes_can_be_pasted(tmp_path: Path) -> None:
    for number in range(2):
        files = [(f"{number}.it's a.jpg", jpeg(20, 20, seed=number)), (f"{number}.it's a.cls", b"%d" % number)]
        write_tar(tmp_path / f"{number}.tar", files)
    command = ["build", "webdataset", "{0..1}.tar", "x", "--size", 8]
    for _ in range(2):
        text = prep(*command, cwd=tmp_path).stderr
        command += shlex.split(text.partition("first 0.tar/")[2].partition("pass ")[2].partition(";")[0])
    printed(*command, cwd=tmp_path)
    assert open_store(tmp_path / "x").labels.tolist() == [0, 1]


def test_label_that_is_a_link_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(__file__, "k.jpg")
        link = tarfile.TarInfo("k.cls")
        link.type, link.linkname = tarfile.SYMTYPE, "other.cls"
        tar.addfile(link)
    (entry,) = open_webdataset(str(tmp_path / "a.tar")).scan().entries
    assert entry.problem == "no label: cls: a link in the tar"


CHOOSE = "(--label-suffix chooses a file)"


def warned(source: WebdatasetSource) -> list[str]:
    return [line for line in source.listing().warnings if line.startswith("labels from")]


def test_all_labels_are_from_one_suffix_and_key(tmp_path: Path) -> None:
    choose = "; choose a suffix with --label-suffix, or write all labels under one key of json"
    for first, second, found in (
        ({"json": {"label": 0}}, {"txt": "a cat"}, r"label from txt, but those before are from json \(key label\)"),
        ({"cls": 1}, {"json": {"label": 0}}, r"label from json \(key label\), but those before are from cls"),
        ({"json": {"label": 0}}, {"json": {"cls": 1}}, r"json \(key cls\), but those before are from json \(key label"),
    ):
        pattern = shard(tmp_path, sample("a", IMAGE, **first), sample("b", IMAGE, **second))
        with pytest.raises(BuildError, match=f"a-0.tar/b.jpg: .*{found}.*{choose}"):
            open_webdataset(pattern).scan()
    two = shard(tmp_path, sample("a", IMAGE, json={"label": 0}), sample("b", IMAGE, json={"label": 1}, txt="a cat"))
    source = open_webdataset(two)
    assert [entry.label for entry in source.scan().entries] == [0, 1]
    assert warned(source) == [
        f"labels from json (key label) that differ from those in txt {CHOOSE}: 1 (first {two}/b.jpg)"
    ]
    chosen = open_webdataset(two, label_suffix="txt")
    assert [entry.problem for entry in chosen.scan().entries] == ["no label", ""]
    assert warned(chosen) == []
    assert warned(open_webdataset(two, no_labels=True)) == []


@pytest.mark.parametrize(("other", "expected"), [(1, []), ("cat", ["json (key class)"])])
def test_keys_that_are_not_read_are_named(tmp_path: Path, other: object, expected: list[str]) -> None:
    path = shard(tmp_path, sample("a", IMAGE, json={"label": 1, "class": other}))
    found = "labels from json (key label) that differ from those in"
    texts = [f"{found} {one} {CHOOSE}: 1 (first {path}/a.jpg)" for one in expected]
    assert warned(open_webdataset(path)) == texts


def test_suffixes_can_be_named(tmp_path: Path) -> None:
    others = [jpeg(30, 20, seed=seed) for seed in range(2)]
    files = [
        ("0.input.jpg", IMAGE),
        ("0.meta.json", b'{"label": "cat", "age": 7}'),
        ("0.png", others[0]),
        ("0.cls", b"3"),
        ("0.mask.png", others[1]),
    ]
    path = shard(tmp_path, files)
    cases: list[tuple[dict[str, Any], bytes, str]] = [
        ({}, b"0.png", "3"),
        ({"image_suffix": "input.jpg"}, b"0.input.jpg", "3"),
        ({"image_suffix": ".INPUT.jpg", "label_suffix": "meta.json", "column": ["age"]}, b"0.input.jpg", "cat"),
        ({"label_suffix": "meta.json", "paired": {"mask": "png"}, "image_suffix": "mask.png"}, b"0.mask.png", "cat"),
    ]
    for flags, name, label in cases:
        source = open_webdataset(path, **flags)
        (entry,) = source.scan().entries
        assert (entry.name, source.listing().classes[entry.label].name) == (b"a-0.tar/" + name, label)
        restored = open_source(source.kind, source.root, source.arguments())
        assert restored.read(entry)[0] == dict(files)[name.decode()]
        assert [found.place for found in open_webdataset(path, **source.options()).find([entry.name])] == [entry.place]
        assert entry.values == ((7,) if "column" in flags else ())
    problems = {entry.problem for entry in open_webdataset(path, image_suffix="jpg").scan().entries}
    unlabeled = open_webdataset(path, label_suffix="meta.json", no_labels=True, column=["age"])
    assert [(entry.label, entry.values) for entry in unlabeled.scan().entries] == [(0, (7,))]
    dots = "if the names of samples contain dots, pass --last-dot"
    assert problems == {f"{NO_IMAGE}input.jpg, meta.json, png; expected jpg; {dots}"}
    same: list[dict[str, Any]] = [{"label_suffix": ".PNG"}, {"paired": {"mask": "png"}}]
    for twice in same:
        with pytest.raises(BuildError, match="the suffix png is given twice, expected another suffix for the image"):
            open_webdataset(path, image_suffix="png", **twice)
    with pytest.raises(
        BuildError, match=r"--last-dot: the suffix input\.jpg has a dot, so it does not begin at the last"
    ):
        open_webdataset(path, image_suffix="input.jpg", last_dot=True)
    with pytest.raises(BuildError, match="--no-labels ignores labels; omit --label-suffix"):
        open_webdataset(path, label_suffix="cls", no_labels=True)


def test_samples_with_dots_in_their_names_are_counted_and_can_be_read(tmp_path: Path) -> None:
    files = [
        (f"v1.5/scan.{number}.{suffix}", data) for number in "012" for suffix, data in (("cls", b"1"), ("jpg", IMAGE))
    ]
    path = shard(tmp_path, files)
    advice = "if the names of samples contain dots, pass --last-dot"
    problem = f"{NO_IMAGE}0.cls, 0.jpg, 1.cls; {FIRST_DOT}; {advice}"
    names = [b"a-0.tar/v1.5/scan.%d.jpg" % number for number in range(3)]
    assert [(entry.name, entry.problem) for entry in open_webdataset(path).scan().entries] == [
        (n, problem) for n in names
    ]
    entries = list(open_webdataset(path, last_dot=True).scan().entries)
    assert [(entry.name, entry.label, entry.problem) for entry in entries] == [(name, 1, "") for name in names]
    source = open_webdataset(
        shard(tmp_path, [("p.jpg", IMAGE), ("p.cls", b"0"), ("p.1.jpg", IMAGE), ("p.2.jpg", IMAGE)])
    )
    assert len(source.listing()) == 1
    found = f"images next to the images of samples, not read ({advice}): 2 (first p.1.jpg)"
    assert found in source.listing().warnings


def test_ignored_labels_need_no_suffix_in_a_repair(tmp_path: Path) -> None:
    """With a column of the fractions that are the labels, too, listing finds out that labels are ignored."""
    files = [
        (f"{number}.{suffix}", data)
        for number in range(3)
        for suffix, data in (("jpg", jpeg(30, 20, seed=number)), ("meta.json", b'{"label": %d.5}' % number))
    ]
    tar, out = shard(tmp_path, files), tmp_path / "out"
    flags = ("--label-suffix", "meta.json", "--column", "label", "--size", 8, "--workers", 1)
    assert prep("build", "webdataset", tar, out, *flags).returncode == 0
    flip(out / "images-00000.npy", DATA_OFFSET + 100)
    assert "repaired 1 row" in prep("repair", out, "--from", tar).stdout


def test_key_ends_at_first_dot_of_base_name(tmp_path: Path) -> None:
    files = [
        ("v1.0/k.jpg", IMAGE),
        ("v1.0/k.cls", b"0"),
        ("v1.1/k.seg.png", b"mask"),
        ("v1.1/k.jpg", IMAGE),
        ("v1.1/k.cls", b"1"),
        ("README", b"no suffix"),
        ("v1.0/k.jpg", IMAGE),
        ("v1.0/k.cls", b"2"),
    ]
    entries = list(open_webdataset(shard(tmp_path, files)).scan().entries)
    found = [(entry.name[8:], entry.label, entry.problem) for entry in entries]
    twice = "occurs twice in the tar; the later one is used"
    assert found == [(b"v1.0/k.jpg", 0, twice), (b"v1.1/k.jpg", 1, ""), (b"v1.0/k.jpg", 2, "")]


def test_files_of_a_sample_that_are_not_together_are_an_error(tmp_path: Path) -> None:
    a, b, other = ("a.jpg", IMAGE), ("b.jpg", IMAGE), [("a.cls", b"1"), ("b.cls", b"0")]
    advice = "but not next to its other files; unpack the tar and pack it with tar --sort=name; if the"
    for files, message in (
        ([a, b, *other], f"a.cls is of the sample a, {advice}"),
        ([other[0], b, other[1], a], f"a.jpg is of the sample a, {advice}"),
        ([a, other[0], b, other[1], ("a.cls", b"7")], f"a.cls is of the sample a, {advice}"),  # an appended label
        ([a, other[0], b, other[1], ("a.png", IMAGE), other[0]], f"a.png is of the sample a, {advice}"),
        ([a, ("b.txt", b"1"), other[0]], f"a.cls is of the sample a, {advice}"),
    ):
        for name in ("a-0.tar", "a-0.tar.gz"):
            with pytest.raises(BuildError, match=re.escape(f"{name}: {message}")):
                list(open_webdataset(shard(tmp_path, files, name=name)).scan().entries)
    failed = prep("build", "webdataset", shard(tmp_path, [a, b, *other]), tmp_path / "out", "--max-bad", "50%")
    assert (failed.returncode, "a.cls is of the sample a" in failed.stderr) == (1, True)


def test_error_for_label_beyond_class_list_names_shard(tmp_path: Path) -> None:
    shard(tmp_path, sample("k", IMAGE, cls=0), name="a-0.tar")
    shard(tmp_path, sample("größe/l", IMAGE, cls=2), name="a-1.tar")
    with pytest.raises(BuildError, match=r"/a-1\.tar/größe/l\.jpg: label 2, expected 0 to 1; the class list has 2"):
        list(open_webdataset(str(tmp_path), classes=["x", "y"]).scan().entries)


def test_files_left_out_of_a_folder_are_counted_when_it_is_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shard(tmp_path, sample("a", IMAGE, cls=0))
    assert open_webdataset(tmp_path).listing().warnings == []
    for name in ("b.TAR", "c.tar.bz2", ".hidden", "notes.md"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    found = "files and folders left out, because shards are called *.tar, *.tar.gz, *.tgz"
    assert open_webdataset(tmp_path).listing().warnings == [f"{found}: 4 (b.TAR, c.tar.bz2, more, notes.md)"]
    assert open_webdataset(tmp_path / "a-0.tar").listing().warnings == []
    assert caplog.messages == []  # such as those of a repair, which lists nothing


@pytest.mark.parametrize(
    ("name", "same", "expected"),
    [
        ("a-0.tar.gz", 1, True),
        ("a-0 (1).tar", 1, True),
        ("a-0(2).tar", 1, True),
        ("a-0 (1).tar", 2, False),
        ("a-1.tar", 1, False),
    ],
)
def test_shards_that_may_be_the_same_are_named(tmp_path: Path, name: str, same: int, *, expected: bool) -> None:
    shard(tmp_path, sample("a", IMAGE, cls=0))
    more = [sample(f"{number}", IMAGE, cls=0) for number in range(10 * (same - 1))]
    shard(tmp_path, *more, sample("b", IMAGE, cls=0), name=name)
    first, second = sorted(("a-0.tar", name))
    what = f"shards that may have the same images; if so, remove one: 1 (first {first} and {second})"
    assert [line for line in open_webdataset(tmp_path).listing().warnings if "same" in line] == [what] * expected


def test_plain_and_gzipped_shards_may_be_mixed_and_have_any_name(tmp_path: Path) -> None:
    images = [jpeg(20, 10, seed=seed) for seed in range(9)]
    for number, name in enumerate(["a-0.tar", "a-1.tgz", "a-2.tar.gz"]):
        parts = [sample(f"{k}", images[k], cls=k) for k in range(3 * number, 3 * number + 3)]
        shard(tmp_path, *parts, name=name)
    (tmp_path / "a-1.tgz").rename(tmp_path / "a-1.tar")
    source = open_webdataset(str(tmp_path))
    entries = list(source.scan().entries)
    assert (source.unit_name, source.keeps_order) == ("gzip stream", True)
    assert [entry.unit for entry in entries] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    restored = open_source(source.kind, source.root, source.arguments())
    for k in (5, 3, 8, 0, 4, 4):
        assert restored.read(entries[k])[0] == images[k]


def test_stream_read_in_order_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # gzip cannot compress these bytes, and they do not fit into a buffer, of 128 KiB since Python 3.14.
    images = [os.urandom(30_000) for _ in range(20)]
    path = shard(tmp_path, *(sample(f"{k}", data, cls=0) for k, data in enumerate(images)), name="a.tgz")
    source = open_webdataset(path)
    rewinds: list[int] = []
    reader: Any = gzip._GzipReader
    rewind = reader._rewind

    def counted(self: Any) -> None:
        rewinds.append(1)
        rewind(self)

    monkeypatch.setattr(reader, "_rewind", counted)
    entries = list(source.scan().entries)
    assert [source.read(entry)[0] for entry in entries] == images
    assert not rewinds
    assert source.read(entries[3])[0] == images[3]  # as after an interrupted task
    assert rewinds


def test_network_file_system_lists_shards_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        shard(tmp_path, sample("k", IMAGE, cls=number), name=f"a-{number}.tar")
    one_by_one = list(open_webdataset(str(tmp_path)).scan().entries)
    monkeypatch.setattr("decodeonce.prep.sources.files.network_file_system", lambda path: "NFS")
    source = open_webdataset(str(tmp_path))
    assert LOCAL_FILES.reads_at_once(source.root) == STAT_THREADS
    assert list(source.scan().entries) == one_by_one


def corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 600] = bytes(byte ^ 0x55 for byte in data[middle : middle + 600])
    path.write_bytes(data)


def test_damaged_gzipped_shard_is_named(tmp_path: Path) -> None:
    for damage, message in (
        (lambda path: os.truncate(path, path.stat().st_size // 2), "cannot be unpacked at byte .*end-of-stream marker"),
        (corrupt, "(cannot be unpacked at byte|damaged: no tar header)"),
        (lambda path: flip(path, path.stat().st_size - 6), "cannot be unpacked at byte .*CRC check failed"),
        (
            lambda path: path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:3000])),
            "truncated: ends at byte 3000, expected at least",
        ),
    ):
        images = [jpeg(50, 50, seed=seed) for seed in range(5)]
        path = Path(shard(tmp_path, *(sample(f"{k}", data, cls=0) for k, data in enumerate(images)), name="a.tgz"))
        damage(path)
        with pytest.raises(BuildError, match=rf"a\.tgz: {message}"):
            list(open_webdataset(str(path)).scan().entries)


def test_tar_without_end_is_read_and_a_cut_one_is_refused(tmp_path: Path) -> None:
    parts = [sample("0", b"x" * 700, cls=1), sample("1", b"x" * 1024, cls=0), sample("l" * 150, b"x" * 512, cls=0)]
    whole = Path(shard(tmp_path, *parts)).read_bytes()
    with tarfile.open(tmp_path / "a-0.tar") as tar:
        members = list(tar)
        end = tar.offset
    ends = {member.offset: number for number, member in enumerate(members)} | {end: len(members)}
    assert len(ends) == 7
    for at in sorted({*range(0, end + 1, 128), *(end - 1 for end in ends), *(end + 1 for end in ends)} - {-1, 0}):
        for name, data in (("a-0.tar", whole[:at]), ("a-0.tgz", gzip.compress(whole[:at], 1))):
            (tmp_path / name).write_bytes(data)
            source = open_webdataset(str(tmp_path / name), no_labels=True)
            if at in ends:
                read = [(entry.name, entry.size) for entry in source.scan().entries if not entry.problem]
                images = [member for member in members[: ends[at]] if member.name.endswith("jpg")]
                assert read == [(f"{name}/{member.name}".encode(), member.size) for member in images]
                message = f"1 shard without the empty blocks that end a tar (first {name}): all members are whole, but"
                assert source.listing().warnings[-1].startswith(message)
            else:
                with pytest.raises(BuildError, match=rf"{name}: (truncated: ends at byte {at}|not a tar)"):
                    list(source.scan().entries)


def test_stream_that_cannot_be_read_stops_task(tmp_path: Path) -> None:
    # gzip compresses these bytes, so that corrupting the stream corrupts its codes.
    data = (bytes(random.Random(k).choices(b"abcdefg", k=9000)) for k in range(5))
    path = Path(shard(tmp_path, *(sample(f"{k}", one, cls=0) for k, one in enumerate(data)), name="a.tgz"))
    source = open_webdataset(str(path))
    entries = list(source.scan().entries)
    facts = path.stat()
    corrupt(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(Stopped, match=r"a\.tgz: cannot be unpacked"):
        source.read(entries[-1])


def test_stream_that_became_shorter_stops_task(tmp_path: Path) -> None:
    path = Path(shard(tmp_path, sample("k", os.urandom(9000), cls=0), name="a.tgz"))
    source = open_webdataset(str(path))
    (entry,) = source.scan().entries
    with pytest.raises(Stopped, match=r"a\.tgz: 5480 bytes at byte 15000, expected 9\d+; run"):
        source.read(Entry(entry.name, 0, entry.size, entry.version, place=15000))


def test_captions_as_labels_name_the_flag(tmp_path: Path) -> None:
    path = shard(tmp_path, *(sample(f"{number}", IMAGE, txt=f"caption {number}") for number in range(4)))
    advice = "check that the labels are classes, or name the files of labels with --label-suffix"
    assert f"4 different labels for 4 samples; {advice}" in open_webdataset(path).listing().warnings
