"""ImageNet's class names in words: n02110185 is a Siberian husky.

The table next to this file has the 1,000 synsets of ILSVRC2012 in the order of ILSVRC2012_ID, each with its words in
WordNet 3.0. LICENSE.WordNet applies to the words.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from decodeonce.store.manifest import ImageClass

TABLE = "ilsvrc2012.tsv"


@cache
def ilsvrc2012() -> dict[str, str]:
    """The 1,000 classes of ILSVRC2012, wnid to words, in the order of ILSVRC2012_ID: the first has the ID 1."""
    lines = Path(__file__).with_name(TABLE).read_text("utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def with_words(classes: tuple[ImageClass, ...]) -> tuple[ImageClass, ...]:
    """The same classes; a class without a description gets the words of ILSVRC2012 if its name is one of its wnids."""
    if not any(_may_be_wnid(cls) for cls in classes):
        return classes
    words = ilsvrc2012()
    return tuple(replace(cls, description=words.get(cls.name, "")) if _may_be_wnid(cls) else cls for cls in classes)


def _may_be_wnid(cls: ImageClass) -> bool:
    """Whether the table, which takes 1 ms to read, may have words for this class."""
    return not cls.description and len(cls.name) == 9 and cls.name[0] == "n" and cls.name[1:].isdecimal()
