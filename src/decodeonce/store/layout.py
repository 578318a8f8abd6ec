"""Names and paths of all files of a store, and the choices of how it holds them."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from decodeonce.errors import StoreError
from decodeonce.formatting import quoted, without_secrets
from decodeonce.host import network_file_system

ContainerName = Literal["npy", "hdf5"]  # defined here because recipe and command line need it without NumPy
PixelsName = Literal["rgb", "yuv420", "bc4"]
MOST_NAME_BYTES = 100  # of a paired image


class PixelForm(NamedTuple):
    """How rows hold the pixels of images; `format.CODECS` has its codec.

    Attributes:
        divisor: The bytes of an RGB image are so many times those in a row.
        multiple: Height and width are divisible by this.
        text: What it is, for the help of commands.
    """

    divisor: int
    multiple: int
    text: str


FORMS: dict[PixelsName, PixelForm] = {
    "rgb": PixelForm(1, 1, "as they are"),
    "yuv420": PixelForm(2, 2, "in half the bytes, with colors at half resolution"),
    "bc4": PixelForm(4, 8, "in a quarter, as blocks of yuv420, for training on GPUs"),
}
FORMS_TEXT = "; ".join(f"{name}, {form.text}" for name, form in FORMS.items())
# Arrays of a store or batch: no paired image may have these names.
NOT_PAIRED = ("images", "labels", "rows", "checksums", "boxes", "box_count", "box_labels")
Json = dict[str, Any]  # the facts of a JSON object, such as store.json
URL = re.compile(r"\w[\w+.-]*://|(s3|gs|hf|https?|file):/")  # Path leaves one slash of two
UPLOAD = "upload it again from an intact copy of the store"
# Folders that commands create for their own use and use again: in a store, and next to a store.
PRIVATE_FOLDER = re.compile(r"\.(build|stage|repair)|.+\.jobs", re.DOTALL)
INSIDE_PRIVATE = re.compile(r"journals|plan-[0-9a-f]{8}")
# The arrays that a build writes; other .npy files are columns of the user's own.
BUILT_ARRAY = re.compile(r"(images-\d+|labels|checksums|boxes|box_count|box_labels)\.npy")


def check_choice(name: str, value: object, choices: object) -> None:
    """Raise ValueError unless `value` is one of the values of the `Literal` `choices`."""
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, get_args(choices)))}")


@dataclass(frozen=True)
class Paired:
    """A mask or second image that every row holds after its image.

    Attributes:
        name: Name, such as "mask", which can be that of a variable or a folder.
        channels: 1 for a mask, resized to the nearest value; 3 for an image, resized like the first.

    Raises:
        ValueError: If one of them is not valid.

    Example:
        >>> Paired("target", 3).text
        'target:rgb'
    """

    name: str
    channels: int = 1

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or len(self.name.encode()) > MOST_NAME_BYTES:
            expected = f"expected letters, digits and _, at most {MOST_NAME_BYTES} bytes, such as mask"
            raise ValueError(f"the name of a paired image is {self.name!r:.80}, {expected}")
        if self.channels not in (1, 3):
            raise ValueError(f"paired image {self.name} has {self.channels} channels, expected 1 or 3")

    @classmethod
    def parse(cls, text: str) -> Paired:
        """Return what flags and recipes call "mask" or, with three channels, "target:rgb"; otherwise ValueError."""
        name, colon, kind = text.partition(":")
        if colon and kind != "rgb":
            raise ValueError(
                f"{text!r:.80}: expected a name such as mask, or target:rgb for an image of three channels"
            )
        return cls(name, 3 if colon else 1)

    @property
    def text(self) -> str:
        """The inverse of `parse`."""
        return self.name if self.channels == 1 else f"{self.name}:rgb"


def image_bytes(pixels: PixelsName, shape: tuple[int, int, int]) -> int:
    """Return the bytes of an image of `shape` (H, W, C) in a row; ValueError if it cannot be stored like this."""
    if pixels != "rgb":
        _check_packable(pixels, shape)
    return math.prod(shape) // FORMS[pixels].divisor


def _check_packable(pixels: PixelsName, shape: tuple[int, int, int]) -> None:
    height, width, channels = shape
    if channels != 3:
        raise ValueError(f"the images have {channels} channels, but {pixels} is made of 3")
    step = FORMS[pixels].multiple
    if height % step or width % step:
        near = [f"{_near(height, step, up)}x{_near(width, step, up)}" for up in (False, True)]
        advice = f"use {' or '.join(dict.fromkeys(near))}"
        raise ValueError(
            f"size is {height}x{width}, but {pixels} needs a height and width divisible by {step}: {advice}"
        )


def _near(size: int, step: int, up: bool) -> int:
    """The nearest multiple of `step` below or above a size, at least `step`."""
    return max(step, (size + (step - 1) * up) // step * step)


class StorePaths:
    """The paths of a store at `root`.

    The private folders `staging` and `repair` exist only while a part or a repair is unfinished.

    Args:
        root: Folder of the store.

    Raises:
        StoreError: If `root` is a URL.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if URL.match(str(root)):
            raise _url_error(str(root))
        self.root = root = Path(root)
        self.manifest = root / "store.json"
        self.labels = root / "labels.npy"
        self.checksums = root / "checksums.npy"
        self.samples = root / "samples.tsv"
        self.rejects = root / "rejects.tsv"
        self.virtual = root / "store.h5"  # one virtual dataset over all shards; only with container "hdf5"
        self.part = root / "stage.json"  # which rows the folder holds; only in a staged part
        self.staging = root / ".stage"
        self.claim = self.staging / "stage.json"  # the rows that an unfinished part is going to hold
        self.repair = root / ".repair"

    def shard(self, index: int, suffix: str) -> Path:
        """Shard `index` (from 0)."""
        return self.root / f"images-{index:05d}{suffix}"


def _url_error(url: str) -> StoreError:
    url = without_secrets(re.sub(":/+", "://", url, count=1), word=True)
    command = f"`prep stage {quoted(url)} FOLDER`"
    return StoreError(f"{url}: a URL, expected a local folder; to use a store that is there, stage it first: {command}")


def verify_command(root: Path) -> str:
    """The command that finds all damage in the store or staged part at `root`."""
    return f"`prep verify {quoted(root)}`"


def damaged(path: Path, what: str) -> StoreError:
    """The error for a file of a store or staged part whose contents are not what the store says."""
    return StoreError(f"{path}: {what}; {UPLOAD if '://' in str(path) else f'run {verify_command(path.parent)}'}")


def missing_advice(folder: Path) -> str:
    """Advice for a file missing from a folder on a network: its server may be unreachable, and the file not lost."""
    kind = folder.is_dir() and network_file_system(folder)
    return f"the file server may be down ({kind}): check that first; otherwise " if kind else ""
