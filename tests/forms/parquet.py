"""Parquet files like those of Hugging Face."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from decodeonce.sources import Source, open_parquet
from tests.forms.form import Form, Pic

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_table(
    path: Path, columns: dict[str, Any], *, names: Sequence[str] | None = None, group: int = 3, **options: Any
) -> Path:
    """Write a Parquet file. `names` are class names, stored in the schema like the datasets library does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group, **options)
    return path


def images(pairs: Sequence[tuple[bytes | None, str | None] | None]) -> Any:
    """Return a column of images from pairs of bytes and path."""
    return pa.array([pair and {"bytes": pair[0], "path": pair[1]} for pair in pairs], IMAGE)


def _hugging_face(root: Path, pics: Sequence[Pic]) -> Source:
    wnids = sorted({pic.wnid for pic in pics})
    parts = [pics[:7], pics[7:]]
    for number, part in enumerate(parts):
        columns = {
            "image": images([(pic.data, f"{pic.stem}.JPEG") for pic in part]),
            "label": pa.array([wnids.index(pic.wnid) for pic in part]),
        }
        write_table(root / "data" / f"train-{number:05d}-of-{len(parts):05d}.parquet", columns, names=wnids)
    return open_parquet(root)


FORMS = [Form("parquet", _hugging_face, in_order=False, sizes_known=False)]
