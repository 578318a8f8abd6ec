"""What says ImageNet's classes and the labels of val: Kaggle's lists, and the development kit."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator

from decodeonce.errors import BuildError
from decodeonce.prep.sources.imagenet.beside import DEVKIT_TAR, MAPPING, META, SOLUTION, TRUTH, Beside
from decodeonce.prep.sources.imagenet.class_order import class_order
from decodeonce.prep.sources.imagenet.synsets import find_synsets
from decodeonce.prep.sources.imagenet.val_labels import find_val_labels
from tests.forms.form import Pic
from tests.forms.imagenet import mapping, meta_mat, solution, truth
from tests.fuzz.scratch import scratch

FOLDER = scratch("class-lists") / "a" / "b" / "c" / "d"  # nothing of the folders above is looked at
FILES = (MAPPING, SOLUTION, TRUTH, META, DEVKIT_TAR)
PICS = [Pic(wnid, str(number), b"") for number, wnid in enumerate(("n01440764", "n01443537", "n01440764"))]
WNIDS = sorted({pic.wnid for pic in PICS})


def seeds() -> Iterator[bytes]:
    """Each file as it is, its number in the first byte."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as kit:
        for name, data in ((TRUTH, truth(PICS)), (META, meta_mat(WNIDS))):
            info = tarfile.TarInfo(f"kit/data/{name}")
            info.size = len(data)
            kit.addfile(info, io.BytesIO(data))
    for number, data in enumerate((mapping(WNIDS), solution(PICS), truth(PICS), meta_mat(WNIDS), out.getvalue())):
        yield bytes([number]) + data


def TestOneInput(data: bytes) -> None:
    """Find classes and labels where one file is this, and the ground truth and its numbers are whole beside it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = FILES[data[0] % len(FILES)] if data else MAPPING
    for path in FOLDER.iterdir():
        path.unlink()
    if name in (TRUTH, META):
        (FOLDER / TRUTH).write_bytes(truth(PICS))
        (FOLDER / META).write_bytes(meta_mat(WNIDS))
    (FOLDER / name).write_bytes(data[1:])
    beside = Beside(FOLDER)
    try:
        listed, doubts = find_synsets(beside, for_labels=False)
        assert all(isinstance(doubt, str) for doubt in doubts)
        class_order(FOLDER, WNIDS, listed=listed)
    except BuildError:
        pass
    try:
        labels = find_val_labels(beside)
        assert labels.digest
        assert labels.missing([]) or not labels.wnids
        class_order(FOLDER, sorted(set(labels.wnids.values())), listed=listed, is_val=True)
    except BuildError:
        pass
