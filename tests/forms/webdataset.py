"""WebDataset shards, plain and gzipped."""

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from decodeonce.sources import Source, open_webdataset
from tests.forms.form import Form, Pic


def write_tar(path: Path, files: Iterable[tuple[str, bytes]], mode: str = "w") -> Path:
    """Write a tar of these files in their order; mode "w:gz" compresses it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, errors="surrogateescape") as tar:  # type: ignore[call-overload]
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def sample(key: str, image: bytes, **parts: object) -> list[tuple[str, bytes]]:
    """Return the files of a sample, sorted like WebDataset's writer does. json is encoded, other values become text."""
    written = {suffix: json.dumps(part) if suffix == "json" else str(part) for suffix, part in parts.items()}
    return sorted([(f"{key}.jpg", image), *((f"{key}.{suffix}", text.encode()) for suffix, text in written.items())])


def _shards(root: Path, pics: Sequence[Pic], *, suffix: str, mode: str, named: bool) -> Source:
    wnids = sorted({pic.wnid for pic in pics})
    for number, first in enumerate(range(0, len(pics), 4)):
        parts = [
            sample(f"set/{pic.stem}", pic.data, txt=pic.wnid)
            if named
            else sample(pic.stem, pic.data, cls=wnids.index(pic.wnid), json={"label": 7})
            for pic in pics[first : first + 4]
        ]
        write_tar(root / f"train-{number:04d}{suffix}", chain(*parts), mode)
    return open_webdataset(f"{root}/train-{{0000..{number:04d}}}{suffix}")


FORMS = [
    Form("webdataset", partial(_shards, suffix=".tar", mode="w", named=True), in_order=False),
    Form(
        "webdataset-gzip",
        partial(_shards, suffix=".tgz", mode="w:gz", named=False),
        in_order=False,
        classes_named=False,
    ),
]
