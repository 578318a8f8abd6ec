"""Which classes ImageNet has and what they are called: LOC_synset_mapping.txt, or the table of ILSVRC2012."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from decodeonce.prep.sources.imagenet.beside import MAPPING, Beside

TABLE = "ilsvrc2012.tsv"


@dataclass(frozen=True)
class Synsets:
    """The classes that a list names, wnid to words for people; `origin` is the list's name."""

    origin: str
    words: dict[str, str]


@cache
def ilsvrc2012() -> dict[str, str]:
    """The 1,000 classes of ILSVRC2012, wnid to words, in the order of ILSVRC2012_ID: the first has the ID 1."""
    lines = Path(__file__).with_name(TABLE).read_text("utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


def find_synsets(beside: Beside) -> Synsets | None:
    """The classes that LOC_synset_mapping.txt names; without it, those of ILSVRC2012 if the development kit is there.

    Raises BuildError if the list cannot be read.
    """
    mapping = beside.find(MAPPING)
    if mapping is None:
        return Synsets("ILSVRC2012", ilsvrc2012()) if beside.devkit() else None
    pairs = (line.split(maxsplit=1) for line in mapping.data.decode("utf-8-sig", "replace").splitlines())
    return Synsets(mapping.origin, {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2})
