"""Which classes ImageNet has and what they are called: LOC_synset_mapping.txt, or the table of ILSVRC2012."""

from __future__ import annotations

from dataclasses import dataclass

from decodeonce.prep.sources.imagenet.companions import MAPPING, CompanionFiles
from decodeonce.store.class_words import ilsvrc2012


@dataclass(frozen=True)
class Synsets:
    """The classes that a list names, wnid to words for people; `origin` is the list's name."""

    origin: str
    words: dict[str, str]


def find_synsets(companions: CompanionFiles) -> Synsets | None:
    """The classes that LOC_synset_mapping.txt names; without it, those of ILSVRC2012 if the development kit is there.

    Raises BuildError if the list cannot be read.
    """
    mapping = companions.find(MAPPING)
    if mapping is None:
        return Synsets("ILSVRC2012", ilsvrc2012()) if companions.devkit() else None
    pairs = (line.split(maxsplit=1) for line in mapping.data.decode("utf-8-sig", "replace").splitlines())
    return Synsets(mapping.origin, {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2})
