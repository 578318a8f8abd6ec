"""A form: a way to write images to disk, and the source that reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from decodeonce.prep.sources.base import Source


class Pic(NamedTuple):
    """An image to write: its class, its unique name without suffix, and the bytes of a JPEG."""

    wnid: str
    stem: str
    data: bytes


@dataclass(frozen=True)
class Form:
    """A way to write images to disk.

    Attributes:
        name: The form's name in test ids.
        make: Writes the images below an empty folder and returns the opened source.
        in_order: Whether the source lists images by class, then by name; otherwise in the order of `make`.
        classes_named: Whether its class names are the wnids.
        sizes_known: Whether the listing knows sizes; otherwise they are 0.
        stem_of: Returns the name without suffix under which one of the images is written.
    """

    name: str
    make: Callable[[Path, Sequence[Pic]], Source]
    in_order: bool = True
    classes_named: bool = True
    sizes_known: bool = True
    stem_of: Callable[[Sequence[Pic], Pic], str] = lambda pics, pic: pic.stem
