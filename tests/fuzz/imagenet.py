"""ImageNet's archives, opened, listed and read: a tar of class tars, a tar of val images, and Kaggle's zip."""

import zipfile
from collections.abc import Iterator
from random import Random

from decodeonce.errors import BuildError, Stopped
from decodeonce.sources import Undecodable, open_imagenet
from tests.forms.form import Pic
from tests.forms.imagenet import ZIP, class_tars, flat, kaggle, solution, tar_bytes, zip_bytes
from tests.fuzz import Mutate, scratch, tar, zip

MAX_READ_BYTES = 1 << 20
FILES = ("train.tar", "ILSVRC2012_img_val.tar", ZIP)
PICS = [Pic(wnid, f"{wnid}_{number}", b"picture") for number, wnid in enumerate(("n01440764", "n01443537") * 2)]
FOLDER = scratch("imagenet") / "a" / "b" / "c" / "d"


def seeds() -> Iterator[bytes]:
    """Yield each archive with its number in the first byte."""
    yield b"\0" + tar_bytes(class_tars(PICS))
    yield b"\1" + tar_bytes(flat(PICS, "."))
    for split in ("train", "val"):
        yield b"\2" + zip_bytes(kaggle(PICS, split), zipfile.ZIP_DEFLATED)


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change the tar or the zip (7 of 8 times), or let libFuzzer change the bytes."""
    if not data or not random.randrange(8):
        return mutate(data, size)
    change = zip.mutate if data[0] % len(FILES) == 2 else tar.mutate
    return data[:1] + change(data[1:], size - 1, random, mutate)


def TestOneInput(data: bytes) -> None:
    """List the archive, and read the small images that it lists."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "LOC_val_solution.csv").write_bytes(solution(PICS))
    file = FOLDER / FILES[data[0] % len(FILES) if data else 0]
    file.write_bytes(data[1:])
    try:
        source = open_imagenet(file)
        assert source.found
        entries = list(source.scan().entries)
    except BuildError:
        return
    for entry in entries:
        assert entry.problem or 0 <= entry.label < len(source.listing().classes), entry
        if entry.problem or entry.size > MAX_READ_BYTES:
            continue
        try:
            assert len(source.read(entry)[0]) == entry.size
        except (Stopped, Undecodable):
            continue
