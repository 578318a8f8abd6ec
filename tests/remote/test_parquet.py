"""Parquet files in an object store."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from decodeonce.prep.building.worker import read_by_unit
from decodeonce.prep.sources import open_source
from decodeonce.prep.sources.parquet import open_parquet
from tests.forms.parquet import write_table
from tests.images import jpeg
from tests.remote.conftest import Proxy


def groups_read(proxy: Proxy) -> int:
    """Return how many requests were for the images of a row group."""
    spans = [span.removeprefix("bytes=").partition("-") for _, span in proxy.requests if span]
    return sum(int(last) - int(first) > 100_000 for first, _, last in spans)


def test_next_row_group_is_read_while_one_is_decoded(tmp_path: Path, s3: Any, proxy: Proxy) -> None:
    data = [jpeg(400, 300, seed=seed, quality=95) for seed in range(12)]
    write_table(tmp_path / "a.parquet", {"image": pa.array(data), "label": pa.array([0] * 12)})
    s3.upload_file(str(tmp_path / "a.parquet"), "images", "a.parquet")
    source = open_parquet("s3://images/a.parquet")
    entries = list(source.scan().entries)
    worker = open_source(source.kind, source.root, source.arguments())
    proxy.requests.clear()
    for number, (entry, read) in enumerate(read_by_unit(worker, [*entries[3:6], *entries[9:], *entries[:3]])):
        assert read() == [data[entry.unit * 3 + entry.place]]
        while groups_read(proxy) < min(number // 3 + 2, 3):  # the next group is read while this one is decoded
            proxy.arrived.wait(1)
            proxy.arrived.clear()
    assert groups_read(proxy) == 3
