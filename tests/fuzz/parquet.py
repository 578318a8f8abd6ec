"""Parquet files, listed by pyarrow.

pyarrow aborts on some damaged files, which is no finding, so each input is listed in a process of its own. Images are
not read: workers do that, and a crash there costs one row.
"""

import json
import os
import signal
import traceback
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.sources.parquet import open_parquet
from tests.forms.parquet import IMAGE
from tests.fuzz import scratch

FILE = scratch("parquet") / "fuzz.parquet"
IMAGES = [{"bytes": b"picture", "path": "a.jpg"}, {"bytes": None, "path": None}, None]


def seeds() -> Iterator[bytes]:
    """Yield files with numbers and class names, with dictionary-encoded strings, and with a plain column of bytes."""
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    images = pa.array(IMAGES, IMAGE)
    yield _encode(pa.table({"image": images, "label": [0, 1, 1]}).replace_schema_metadata(metadata))
    yield _encode(pa.table({"image": images, "label": pa.array(["a", "b", None]).dictionary_encode()}))
    yield _encode(pa.table({"image": [b"x", b"y", b""], "label": [2, -1, None]}), compression="none", version="1.0")
    plain = _encode(pa.table({"image": [b"x", b"y"], "label": ["cat", "dog"]}))
    for text, other in ((b"label", b"l\xffbel"), (b"image", b"im\xffge"), (b"cat", b"c\xfft")):
        yield plain.replace(text, other)  # not UTF-8: pyarrow raises a UnicodeDecodeError


def _encode(table: pa.Table, **options: object) -> bytes:
    pq.write_table(table, FILE, row_group_size=2, **options)
    return FILE.read_bytes()


def TestOneInput(data: bytes) -> None:
    """List the file in a process of its own."""
    FILE.write_bytes(data)
    child = os.fork()
    if not child:
        try:
            _list()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, -signal.SIGABRT)


def _list() -> None:
    """Every listed row has a class or a problem."""
    try:
        source = open_parquet(FILE)
        assert source.found
        entries = list(source.scan().entries)
        classes = source.listing().classes
    except (BuildError, Stopped):
        return
    for entry in entries:
        assert entry.problem or 0 <= entry.label < len(classes), entry
