"""The files with ImageNet's classes and val labels: Kaggle's lists and the development kit."""

from collections.abc import Iterator

from decodeonce.errors import BuildError
from decodeonce.prep.sources.imagenet import open_imagenet
from decodeonce.prep.sources.imagenet_labels import DEVKIT_TAR, MAPPING, SOLUTION, TRUTH
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
    """Open class folders and a folder of val images next to one of the files."""
    for wnid in WNIDS:
        (FOLDER / "classes" / wnid).mkdir(parents=True, exist_ok=True)
    (FOLDER / "val").mkdir(exist_ok=True)
    (FOLDER / "val/ILSVRC2012_val_00000001.JPEG").touch()
    name = FILES[data[0] % len(FILES)] if data else MAPPING
    for other in FILES:
        (FOLDER / other).unlink(missing_ok=True)
    (FOLDER / name).write_bytes(data[1:])
    for folder in ("classes", "val"):
        try:
            source = open_imagenet(FOLDER / folder)
            assert source.found
            assert len(list(source.scan().entries)) == (folder == "val")
        except BuildError:
            pass
