"""The classes of ImageNet and their descriptions: from LOC_synset_mapping.txt, or the built-in table of ILSVRC2012."""

from __future__ import annotations

from dataclasses import dataclass

from decodeonce.prep.sources.imagenet.companions import MAPPING, CompanionFiles
from decodeonce.store.class_words import ilsvrc2012


@dataclass(frozen=True)
class Synsets:
    """The classes of a list: a description for each wnid. `origin` is the list's name."""

    origin: str
    words: dict[str, str]


def find_synsets(companions: CompanionFiles) -> Synsets | None:
    """Return the classes of LOC_synset_mapping.txt; without it, those of ILSVRC2012 if the development kit is present.

    Raise BuildError if the list cannot be read.
    """
    mapping = companions.find(MAPPING)
    if mapping is None:
        return Synsets("ILSVRC2012", ilsvrc2012()) if companions.devkit() else None
    pairs = (line.split(maxsplit=1) for line in mapping.data.decode("utf-8-sig", "replace").splitlines())
    return Synsets(mapping.origin, {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2})
