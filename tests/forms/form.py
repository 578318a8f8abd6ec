"""What a form is: a way to write pictures to disk, and the source that reads them from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from decodeonce.prep.sources import Source


class Pic(NamedTuple):
    """A picture to be written: its class, its name without suffix (unique), its encoded bytes (a JPEG)."""

    wnid: str
    stem: str
    data: bytes


@dataclass(frozen=True)
class Form:
    """`make` writes the pictures below a folder that is empty and returns the opened source.

    `in_order` says whether the source lists them by class, then by name; if not, as they were given. `classes_named`:
    whether its class names are the wnids. `sizes_known`: whether the listing knows sizes; they are 0 if not. `stem_of`:
    the name without suffix under which a picture of these is written.
    """

    name: str
    make: Callable[[Path, Sequence[Pic]], Source]
    in_order: bool = True
    classes_named: bool = True
    sizes_known: bool = True
    stem_of: Callable[[Sequence[Pic], Pic], str] = lambda pics, pic: pic.stem
