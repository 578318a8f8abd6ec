"""Descriptions of ImageNet classes: n02110185 is a Siberian husky.

The table next to this file lists the 1,000 synsets of ILSVRC2012 in the order of ILSVRC2012_ID, each with its words
from WordNet 3.0. LICENSE.WordNet applies to the words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from decodeonce.store.manifest import ImageClass

TABLE = "ilsvrc2012.tsv"


@cache
def ilsvrc2012() -> dict[str, str]:
    """Map the 1,000 wnids of ILSVRC2012 to their words, ordered by ILSVRC2012_ID. The first one has ID 1."""
    lines = Path(__file__).with_name(TABLE).read_text("utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def with_words(classes: tuple[ImageClass, ...]) -> tuple[ImageClass, ...]:
    """Add the words of ILSVRC2012 to classes that are named by a wnid and have no description."""
    if all(cls.description for cls in classes):  # reading the table takes 1 ms
        return classes
    words = ilsvrc2012()
    return tuple(cls if cls.description else replace(cls, description=words.get(cls.name, "")) for cls in classes)
