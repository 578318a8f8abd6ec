"""Messages for inputs that the fuzz targets have found; the inputs themselves are among the seeds of the targets."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decodeonce.errors import BuildError
from decodeonce.prep.building.journal import Journals
from decodeonce.prep.sources import parquet as tables
from decodeonce.prep.sources.holders import open_holder
from tests.fuzz.journal import signed


def test_workers_refuse_parquet_file_with_invalid_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": [b"x", b"y"], "label": ["cat", "dog"]}), path)
    path.write_bytes(path.read_bytes().replace(b"image", b"im\xffge"))
    with (
        open_holder(path) as holder,
        pytest.raises(BuildError, match=r"utf-8.*; expected a complete Parquet file"),
    ):
        tables.Table(holder).read(0, ["image"])


def test_error_names_the_journal_of_a_foreign_record(tmp_path: Path) -> None:
    (tmp_path / "0of1-host-1-00.log").write_bytes(signed(b"1\t1.000\t{}"))
    with pytest.raises(BuildError, match=r"0of1-host-1-00\.log: has a record of another decodeonce release; remove"):
        next(Journals(tmp_path).records([1]))
