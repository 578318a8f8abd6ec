"""The limits of docs/contribute/sources.md on the size of inputs are enforced with little memory."""

import gzip
import os
import re
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decodeonce.errors import BuildError, DecodeonceError
from decodeonce.prep.sources import archives, boxed, file_list, files, parquet, patterns
from decodeonce.prep.sources.archives import BLOCK, list_tar, list_zip, read_member
from decodeonce.prep.sources.files import MAX_FILE_BYTES
from decodeonce.prep.sources.holders import Member, open_holder
from decodeonce.prep.sources.imagenet_labels import DEVKIT_TAR, TRUTH, CompanionFiles
from decodeonce.sources import Undecodable, open_imagenet, open_list, open_parquet, open_webdataset
from tests.forms.imagenet import tar_bytes, zip_bytes
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import replaced

DOC = Path(__file__).resolve().parents[2] / "docs" / "contribute" / "sources.md"
MB = 1 << 20
HUGE = 10_000_000_000


@contextmanager
def peak_below(limit: int) -> Iterator[None]:
    """Assert that the objects of Python take less memory than this, in bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def refused(message: str) -> AbstractContextManager[object]:
    return pytest.raises(BuildError, match=message)


def write_sparse(path: Path, data: bytes, size: int) -> Path:
    """Write a file of `size` bytes: first `data`, then a hole."""
    path.write_bytes(data)
    os.truncate(path, size)
    return path


def listed(path: Path) -> list[Member]:
    """List a tar or a zip."""
    with open_holder(path) as holder:
        return list((list_zip if path.suffix == ".zip" else list_tar)(holder))


def header(kind: bytes, size: int, name: str = "x.jpg") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def bounds() -> dict[str, int]:
    """Map "module.NAME" to the value of each constant of the modules in the table of docs/contribute/sources.md."""
    others = [import_module(f"decodeonce.prep.sources.{name}") for name in ("labels", "webdataset")]
    modules = (archives, boxed, file_list, files, parquet, patterns, *others)
    return {f"{m.__name__.rpartition('.')[2]}.{key}": value for m in modules for key, value in vars(m).items()}


# Other modules import these.
SHARED = {"files.MAX_FILE_BYTES", "archives.MAX_MEMBERS", "archives.MAX_NAME_BYTES"}
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def test_documentation_lists_every_bound() -> None:
    values, documented = bounds(), set()
    for line in DOC.read_text().splitlines():
        if row := re.fullmatch(
            r"\| [^|]+ \| ([\d,]+)(?: (KiB|MiB|GiB))?[^|]* \| [^|]+ \| `([a-z_]+\.[A-Z_]+)` \|", line
        ):
            documented.add(row[3])
            assert int(row[1].replace(",", "")) * UNITS[row[2] or ""] == values[row[3]], line
    names = {name for name in values if re.fullmatch(r"[a-z_]+\.MAX_\w+", name)}
    imported = {name for name in names if name.split(".")[1] in {shared.split(".")[1] for shared in SHARED}}
    assert names - imported | SHARED == documented


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_header_of_gigabytes_is_not_read(tmp_path: Path, kind: bytes) -> None:
    path = write_sparse(tmp_path / "x.tar", header(kind, HUGE), HUGE + 4096)
    with peak_below(2 * MB), refused("x.tar: not a tar, or damaged: headers of more than 1048576 bytes"):
        listed(path)


def test_name_of_a_million_characters_is_refused(tmp_path: Path) -> None:
    for format_ in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        (tmp_path / "x.tar").write_bytes(tar_bytes({"a" * 1_000_000: b"x"}, format=format_))
        message = "x.tar: a name has 1000000 bytes, expected at most 65536"
        with peak_below(16 * MB), refused(message):
            listed(tmp_path / "x.tar")


def global_header(key: int) -> bytes:
    """Return a global header of 300 KB, and an empty member."""
    text = b" k%06d=%s\n" % (key, b"v" * 300_000)
    record = b"%d%s" % (len(text) + 6, text)
    return header(b"g", len(record)) + record.ljust(-len(record) // BLOCK * -BLOCK, b"\0") + header(b"0", 0)


def negative_size() -> bytes:
    data = bytearray(header(b"0", 1))
    data[124:136] = b"\xff" * 11 + b"\xfe"  # -2 in base 256
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * 32 + sum(data[156:BLOCK]))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((header(b"L", MB // 2) + b"a" * (MB // 2)) * 3 + header(b"0", 1), "headers of more than"),
        ((header(b"L", 1) + bytes(BLOCK)) * 900, "nested headers; download it again"),
        (b"".join(map(global_header, range(5))), "global headers of more than"),
        # Parsing longer numbers would take quadratic time.
        (header(b"x", 512 * BLOCK) + b"1" * 512 * BLOCK + header(b"0", 0), "a number of more than 256 digits"),
        (negative_size(), "bad header at byte 0|.*invalid offset"),  # the latter before Python 3.11.3
    ],
    ids=["headers", "nested", "global", "number", "negative"],
)
def test_tar_with_hostile_headers_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.tar").write_bytes(data + bytes(3 * BLOCK))
    with refused(rf"x.tar: not a tar, or damaged: .*({message})"):
        listed(tmp_path / "x.tar")


def test_members_and_names_of_an_archive_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{number}.jpg": b"x" for number in range(5)}
    (tmp_path / "x.tar").write_bytes(tar_bytes(files))
    (tmp_path / "x.zip").write_bytes(zip_bytes(files))
    for path in (tmp_path / "x.tar", tmp_path / "x.zip"):
        for name, needed in (("MAX_MEMBERS", 5), ("MAX_NAMES_BYTES", 25)):
            with monkeypatch.context() as patched:
                patched.setattr(archives, name, needed)
                assert len(listed(path)) == 5
                patched.setattr(archives, name, needed - 1)
                with refused(r"more than \d+ members"):
                    listed(path)


def write_gzip_bomb(path: Path, size: int, start: bytes = b"") -> None:
    """Write a gzip stream that contains `start` and then `size` bytes of zeros."""
    with gzip.open(path, "wb", 9) as file:
        file.write(start)
        for _ in range(size // MB):
            file.write(bytes(MB))


def test_gzip_stream_is_decompressed_in_little_memory(tmp_path: Path) -> None:
    write_tar(tmp_path / "plain", sample("x", b"picture", cls=1))
    write_gzip_bomb(tmp_path / "x.tar.gz", 24 * MB, (tmp_path / "plain").read_bytes())
    [entry] = open_webdataset(str(tmp_path)).scan().entries  # the zeros follow the end of the tar
    assert entry.problem == ""
    with peak_below(6 * MB):
        list(open_webdataset(str(tmp_path)).scan().entries)


def test_member_that_decompresses_to_too_much_is_rejected(tmp_path: Path) -> None:
    size = 16 * MB
    write_gzip_bomb(tmp_path / "x.tar.gz", size, header(b"0", size - 2 * BLOCK))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "MAX_FILE_BYTES", MB)
        with peak_below(6 * MB):
            [entry] = open_webdataset(str(tmp_path)).scan().entries
    assert entry.problem == f"{size - 2 * BLOCK} bytes, more than any image has"


def test_development_kit_is_read_in_little_memory(tmp_path: Path) -> None:
    write_gzip_bomb(tmp_path / DEVKIT_TAR, 24 * MB, header(b"0", 20 * MB, "huge"))
    with peak_below(6 * MB), refused("contains no ILSVRC2012_validation_ground_truth.txt"):
        CompanionFiles(tmp_path).truth()
    write_gzip_bomb(tmp_path / DEVKIT_TAR, 2 * MB, header(b"0", 100 * MB, f"data/{TRUTH}"))
    with refused("truncated"):
        CompanionFiles(tmp_path).truth()


def test_central_directory_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    size = (1 << 30) + 1
    with open(tmp_path / "x.zip", "wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, size, 0, 0))
    with peak_below(2 * MB), refused("x.zip: not a zip, .*the central directory has 1073741825 bytes"):
        listed(tmp_path / "x.zip")


def test_zips_with_overlapping_members_are_refused(tmp_path: Path) -> None:
    """Many members can share the same bytes, as in zip bombs that decompress to more than any disk holds."""
    whole = zip_bytes({"a.jpg": b"picture", "b.jpg": b"another"})
    second = whole.rindex(b"PK\x01\x02")
    for start, message in ((0, "overlapping members"), (1 << 20, "members beyond its")):
        (tmp_path / "x.zip").write_bytes(replaced(whole, second + 42, struct.pack("<L", start)))
        with refused(f"x.zip: not a zip, .*{message}"):
            listed(tmp_path / "x.zip")


def test_zip_member_is_not_decompressed_beyond_its_declared_size(tmp_path: Path) -> None:
    data = zip_bytes({"a.jpg": bytes(64 * MB)}, zipfile.ZIP_DEFLATED)
    central = data.rindex(b"PK\x01\x02")
    (tmp_path / "x.zip").write_bytes(replaced(data, central + 24, struct.pack("<L", 1000)))
    [found] = listed(tmp_path / "x.zip")
    too_much = pytest.raises(Undecodable, match="damaged zip: 1001 bytes")
    with open_holder(tmp_path / "x.zip") as holder, peak_below(3 * MB), too_much:
        read_member(holder, found.place, found.size)
    (tmp_path / "x.zip").write_bytes(replaced(data, central + 24, struct.pack("<L", MAX_FILE_BYTES + 1)))
    [found] = listed(tmp_path / "x.zip")
    assert found.problem == "1073741825 bytes, more than any image has"


def test_very_long_line_is_not_read_to_its_end(tmp_path: Path) -> None:
    for name in ("x.txt", "x.tsv", "x.csv"):
        path = write_sparse(tmp_path / name, b"a/b.jpg" * 1000, HUGE)
        message = f"{name}: a line has more than 1048576 characters; expected a path and a label"
        with peak_below(16 * MB), refused(message):
            list(open_list(path).scan().entries)


def test_csv_field_over_several_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('a.jpg,b\n"' + "x\n" * 100_000)
    with peak_below(2 * MB), refused("line 2: a quoted field spans several lines; expected one row per line"):
        list(open_list(tmp_path / "x.csv").scan().entries)


def test_csv_with_many_rows_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a/picture.jpg,dog and cat\n" * 60_000)
    assert sum(1 for _ in file_list.read_list(tmp_path / "x.csv")) == 60_000


def test_size_of_small_files_is_limited(tmp_path: Path) -> None:
    write_sparse(tmp_path / "LOC_val_solution.csv", b"x", HUGE)
    with peak_below(65 * 3 * MB), refused("LOC_val_solution.csv: more than 67108864 bytes; make it readable, or rem"):
        CompanionFiles(tmp_path).find("LOC_val_solution.csv")


DEEP = 30_000
ENTITIES = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))  # the "billion laughs" attack


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'<!DOCTYPE a [<!ENTITY l0 "ha">{ENTITIES}]><annotation>&l9;</annotation>', "it declares a document type"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>', "a document type"),
        ('<!DOCTYPE a SYSTEM "http://127.0.0.1/x.dtd"><annotation/>', "a document type"),
        ("<annotation>&x;</annotation>", "undefined entity"),
        (f"{'<annotation>' * (DEEP // 12)}{'</annotation>' * (DEEP // 12)}", "its size has width ''"),
        ("<a>" * DEEP, "not well-formed"),
        ("<?xml version='1.0' encoding='utf-7'?><annotation/>", "multi-byte encodings"),
        ("<?xml version='1.0' encoding='nonsense'?><annotation/>", "not well-formed"),
        (" " * (MB + 1), "more than 1048576 bytes"),
    ],
)
def test_invalid_xml_is_refused_in_little_memory(text: str, message: str) -> None:
    with peak_below(64 * MB), pytest.raises(ValueError, match=message):
        boxed.parse(text.encode())


def test_number_of_files_of_a_pattern_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_FILES", 1000)
    for pattern in ("{0..99999999999}.tar", "{0..9999}{0..9999}.tar"):
        with refused("more than 1000 files"):
            open_webdataset(f"{tmp_path}/{pattern}")


def table_file(path: Path, rows: int = 3, **columns: Any) -> Path:
    image = images([(b"picture", f"{number}.jpg") for number in range(rows)])
    return write_table(path, {"image": image, "label": [f"c{number}" for number in range(rows)], **columns})


def test_damaged_parquet_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = table_file(tmp_path / "x.parquet")
    data = path.read_bytes()
    path_in_group = data.index(b"image", data.index(b"image") + 1)  # the first is in the schema
    page = pq.ParquetFile(path).metadata.row_group(0).column(2).dictionary_page_offset
    for damaged in (
        data[:page] + bytes(30) + data[page + 30 :],  # the labels
        data.replace(b"label", b"l\xffbel"),  # the name of a column
        data[:path_in_group] + b"\xff" + data[path_in_group + 1 :],
        data[: len(data) // 2],
        data[:-8] + b"\xff\xff\x00\x00PAR1",  # a footer that begins before the file
        data[:-300] + bytes(292) + data[-8:],  # the end of the footer
    ):
        path.write_bytes(damaged)
        with pytest.raises(BuildError, match=r"x\.parquet: .*; expected a complete Parquet file; copy or download it"):
            list(open_parquet(path).scan().entries)
    path.write_bytes(data)
    assert len(list(open_parquet(path).scan().entries)) == 3


def test_footer_and_row_groups_of_parquet_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_file(tmp_path / "x.parquet")
    source = open_parquet(path)
    first, *_ = source.scan().entries
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 10)
    with refused(r"x.parquet: row group 0: \d+ bytes, expected at most 10; rewrite the file"):
        source.read(first)
    huge = write_sparse(tmp_path / "huge.parquet", b"PAR1", 1 << 30)
    with open(huge, "r+b") as file:
        file.seek((1 << 30) - 8)
        file.write(struct.pack("<L4s", 1 << 29, b"PAR1"))
    with refused("huge.parquet: the footer has 536870912 bytes, expected at most 67108864"):
        open_parquet(huge)


def test_rows_labels_and_paths_of_parquet_files_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_file(tmp_path / "x.parquet", 5, label=["a", "b" * 70_000, "c", "d", "e"])
    columns = parquet.Columns("image.bytes", "image.path", "label")
    with open_holder(path) as holder:
        table = parquet.Table(holder)
        with refused("x.parquet: row group 0: the labels are long texts"):
            table.scan(columns)
        monkeypatch.setattr(parquet, "MAX_NAME_BYTES", 3)
        with refused("a path of more than 3 bytes"):
            list(table.rows(0, columns))
        monkeypatch.setattr(parquet, "MAX_MEMBERS", 4)
        with refused("x.parquet: 5 rows, expected at most 4"):
            table.scan(columns)


def test_row_group_that_decompresses_to_more_than_declared_is_refused(tmp_path: Path) -> None:
    """An image of 64 KiB occurs 1,500 times; with a dictionary, the file has only some kilobytes."""
    columns = {"image": pa.array([bytes(1 << 16)] * 1500, pa.binary()), "label": [1] * 1500}
    path = write_table(tmp_path / "x.parquet", columns, group=1500)
    assert path.stat().st_size < MB
    code = f"""
from decodeonce import host
from decodeonce.prep.sources import parquet
from decodeonce.prep.sources.holders import open_holder
parquet.MORE_BYTES, host.SPARE_BYTES = 64 << 20, 0  # more than the file declares
with open_holder({str(path)!r}) as holder:
    parquet.Table(holder).read(0, ["image"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"BuildError: .*x.parquet: row group 0: takes more than \d+ bytes", ended.stderr)


@pytest.mark.parametrize("form", ["tar", "tar.gz", "zip", "parquet"])
def test_archive_truncated_anywhere_fails_with_an_error(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"x.{form}"
    if form == "zip":
        path.write_bytes(zip_bytes({"ILSVRC/Data/CLS-LOC/train/n1/x.JPEG": b"picture"}, zipfile.ZIP_DEFLATED))
    elif form == "parquet":
        table_file(path)
    else:
        write_tar(path, sample("x", b"picture", cls=1), "w" if form == "tar" else "w:gz")
    openers: dict[str, Callable[[], Any]] = {"zip": lambda: open_imagenet(path), "parquet": lambda: open_parquet(path)}
    data = path.read_bytes()
    for size in range(0, len(data.rstrip(b"\0")), max(1, len(data) // 24)):
        path.write_bytes(data[:size])
        with pytest.raises(DecodeonceError, match=r"x\."):
            list(openers.get(form, lambda: open_webdataset(str(path)))().scan().entries)
