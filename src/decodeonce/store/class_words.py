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
    if not any(_may_be_wnid(cls) for cls in classes):
        return classes
    words = ilsvrc2012()
    return tuple(replace(cls, description=words.get(cls.name, "")) if _may_be_wnid(cls) else cls for cls in classes)


def _may_be_wnid(cls: ImageClass) -> bool:
    """Whether the table may have words for this class. Reading the table takes 1 ms."""
    return not cls.description and len(cls.name) == 9 and cls.name[0] == "n" and cls.name[1:].isdecimal()
