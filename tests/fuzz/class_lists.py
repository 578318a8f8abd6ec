"""The files with ImageNet's classes and val labels: Kaggle's lists and the development kit."""

from __future__ import annotations

from collections.abc import Iterator

from decodeonce.errors import BuildError
from decodeonce.prep.sources.imagenet.labels import (
    DEVKIT_TAR,
    MAPPING,
    SOLUTION,
    TRUTH,
    CompanionFiles,
    find_synsets,
    find_val_labels,
)
from decodeonce.prep.sources.imagenet.split import class_order
from tests.forms.form import Pic
from tests.forms.imagenet import mapping, solution, tar_bytes, truth
from tests.fuzz import scratch

FOLDER = scratch("class-lists") / "a" / "b" / "c" / "d"  # so deep that no reader finds files of the folders above
FILES = (MAPPING, SOLUTION, TRUTH, DEVKIT_TAR)
PICS = [Pic(wnid, str(number), b"") for number, wnid in enumerate(("n01440764", "n01443537", "n01440764"))]
WNIDS = sorted({pic.wnid for pic in PICS})


def seeds() -> Iterator[bytes]:
    """Yield each file with its number in the first byte."""
    kit = tar_bytes({f"kit/data/{TRUTH}": truth(PICS)})
    for number, data in enumerate((mapping(WNIDS), solution(PICS), truth(PICS), kit)):
        yield bytes([number]) + data


def TestOneInput(data: bytes) -> None:
    """Find classes and labels in a folder with one file."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    name = FILES[data[0] % len(FILES)] if data else MAPPING
    for path in FOLDER.iterdir():
        path.unlink()
    (FOLDER / name).write_bytes(data[1:])
    companions = CompanionFiles(FOLDER)
    try:
        listed = find_synsets(companions)
        class_order(FOLDER, WNIDS, listed=listed)
    except BuildError:
        pass
    try:
        labels = find_val_labels(companions)
        assert labels.digest
        class_order(FOLDER, sorted(set(labels.wnids.values())), listed=listed, is_val=True)
    except BuildError:
        pass
