"""Which classes ImageNet has and what they are called: LOC_synset_mapping.txt, or the development kit's meta.mat."""

from __future__ import annotations

from dataclasses import dataclass, field

from decodeonce.errors import BuildError
from decodeonce.prep.sources.formats.matlab import read_structs
from decodeonce.prep.sources.imagenet.beside import MAPPING, META, Beside, Companion


@dataclass(frozen=True)
class Synsets:
    """The classes that a list names: wnid to words for people; `numbers` are meta.mat's, ILSVRC2012_ID to wnid."""

    origin: str
    words: dict[str, str]
    numbers: dict[int, str] = field(default_factory=dict)


def find_synsets(beside: Beside, *, for_labels: bool) -> tuple[Synsets | None, list[str]]:
    """What LOC_synset_mapping.txt says, or meta.mat where that is not there; and what is doubtful about it.

    BuildError where they cannot be read; but a meta.mat that only describes classes is a doubt then, and left alone.
    """
    if (mapping := beside.find(MAPPING)) is not None:
        return read_mapping(mapping), []
    try:
        meta = beside.devkit(META)
        return (None if meta is None else read_meta(meta)), []
    except BuildError as error:
        if for_labels:
            raise
        return None, [f"classes have no descriptions: {error}"]


def read_mapping(file: Companion) -> Synsets:
    """A wnid a line, then a blank and its words."""
    pairs = (line.split(maxsplit=1) for line in file.data.decode("utf-8-sig", "replace").splitlines())
    return Synsets(file.origin, {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2})


def read_meta(file: Companion) -> Synsets:
    """The leaves of meta.mat's `synsets`: what has children is no class of the pictures."""
    cure = "get the development kit again, or move the file away if it is none of it"
    try:
        synsets = read_structs(file.data, "synsets")
    except ValueError:
        raise BuildError(f"{file.path}: no MATLAB file, or a damaged one; {cure}") from None
    rows: list[tuple[int, str, str]] = []
    for synset in synsets or [{}]:
        number, wnid, words = (synset.get(name) for name in ("ILSVRC2012_ID", "WNID", "words"))
        if not (isinstance(number, int) and isinstance(wnid, str) and isinstance(words, str)):
            raise BuildError(f"{file.path}: not ILSVRC2012's meta.mat, for it has no list of synsets; {cure}")
        if synset.get("num_children") == 0:
            rows.append((number, wnid.strip(), words.strip()))
    return Synsets(
        META if file.origin == META else f"{file.origin}'s meta.mat",
        {wnid: words for _, wnid, words in rows},
        {number: wnid for number, wnid, _ in rows},
    )
