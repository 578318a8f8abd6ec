"""Minimal inputs for the errors that the fuzz targets have found."""

import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.building.journal import BlockRecord, Journals, journal_line
from decodeonce.prep.building.plan import read_plan
from decodeonce.prep.sources import open_parquet, open_webdataset
from decodeonce.prep.sources import parquet as tables
from decodeonce.prep.sources.archives import list_zip
from decodeonce.prep.sources.holders import open_holder
from decodeonce.store import StorePaths
from decodeonce.store.hashing import hexdigest
from tests.forms.imagenet import zip_bytes
from tests.fuzz.tar import fix_checksums
from tests.images import replaced


def test_tar_with_a_truncated_sparse_map_is_refused(tmp_path: Path) -> None:
    """The extended sparse header is missing: tarfile raises an IndexError."""
    info = tarfile.TarInfo("a.jpg")
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:483] = b"%011o\0" % 0 * 8 + b"\1"  # four parts; more should be in the next block
    (tmp_path / "a.tar").write_bytes(fix_checksums(bytes(header)))
    with pytest.raises(BuildError, match=r"a\.tar: "):
        list(open_webdataset(str(tmp_path / "a.tar")).entries())


def test_zip_of_a_later_version_is_refused(tmp_path: Path) -> None:
    whole = zip_bytes({"a.jpg": b"picture"})
    central = whole.index(b"PK\x01\x02")
    (tmp_path / "a.zip").write_bytes(replaced(whole, central + 6, bytes([69])))  # the version needed to extract
    with open_holder(tmp_path / "a.zip") as holder, pytest.raises(BuildError, match=r"a.zip: not a zip, or .*6.9"):
        list(list_zip(holder))


def test_deeply_nested_plan_is_damaged(tmp_path: Path) -> None:
    paths = StorePaths(tmp_path)
    paths.build.mkdir()
    paths.plan.write_bytes(b"[" * 100_000)
    with pytest.raises(BuildError, match=r"plan\.json: damaged"):
        read_plan(paths)


def damaged_table(path: Path, text: bytes, other: bytes) -> str:
    """Write a Parquet file, replace a text by other bytes, and return its path."""
    pq.write_table(pa.table({"image": [b"x", b"y"], "label": ["cat", "dog"]}), path)
    path.write_bytes(path.read_bytes().replace(text, other))
    return str(path)


@pytest.mark.parametrize(("text", "other"), [(b"label", b"l\xffbel"), (b"image", b"im\xffge"), (b"cat", b"c\xfft")])
def test_parquet_file_with_invalid_utf_8_is_refused(tmp_path: Path, text: bytes, other: bytes) -> None:
    """Column names and labels that are not UTF-8: pyarrow raises a UnicodeDecodeError."""
    path = damaged_table(tmp_path / "a.parquet", text, other)
    with pytest.raises(BuildError, match=r"a\.parquet: .*utf-8.*; expected a complete Parquet file"):
        list(open_parquet(path).entries())


def test_workers_refuse_parquet_file_with_invalid_utf_8(tmp_path: Path) -> None:
    path = damaged_table(tmp_path / "a.parquet", b"image", b"im\xffge")
    with open_holder(Path(path)) as holder, pytest.raises(BuildError, match="expected a complete Parquet file"):
        tables.Table(holder).read(0, ["image"])


def signed(head: bytes) -> bytes:
    """Return a line of a journal with a valid digest."""
    return b"%s\t%s\n" % (head, hexdigest(head).encode())


def test_foreign_line_of_a_journal_is_ignored(tmp_path: Path) -> None:
    """The digest of such a line may be valid: libFuzzer learns digests from comparisons."""
    good = journal_line(BlockRecord(7), 1.5)
    heads = (b"", b"1", b"1\t1.000", b"x\t1.000\t{}", b"1\tnan\t{}", b"-1\t1.000\t{}")
    (tmp_path / "0of1-host-1-00.log").write_bytes(b"".join(map(signed, heads)) + good)
    assert Journals(tmp_path).blocks() == [7]


@pytest.mark.parametrize("facts", [b"\xff", b"{", b"[" * 5000, b"[]", b"{}", b'{"rejects":[1]}'])
def test_error_names_the_journal_of_a_foreign_record(tmp_path: Path, facts: bytes) -> None:
    (tmp_path / "0of1-host-1-00.log").write_bytes(signed(b"1\t1.000\t" + facts))
    journals = Journals(tmp_path)
    with pytest.raises(BuildError, match=r"0of1-host-1-00\.log: has a record of another decodeonce release; remove"):
        next(journals.records([1]))
