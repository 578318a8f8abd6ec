"""Parquet files in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.command import prep
from tests.forms.all_forms import PICS
from tests.forms.parquet import FORMS
from tests.images import tree_bytes

FLAGS = ("--size", 16, "--workers", 2)


def test_store_from_parquet_files_equals_local_one(tmp_path: Path, s3: Any) -> None:
    FORMS[0].make(tmp_path / "data", PICS)
    for path in (tmp_path / "data").rglob("*.parquet"):
        s3.upload_file(str(path), "images", f"data/{path.name}")
    for src, out in ((tmp_path / "data", "local"), ("s3://images/data", "out")):
        done = prep("build", "parquet", src, tmp_path / out, *FLAGS)
        assert done.returncode == 0, done.stderr
    assert tree_bytes(tmp_path / "out") == tree_bytes(tmp_path / "local")
