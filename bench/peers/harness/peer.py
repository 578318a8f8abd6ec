"""What a peer is, and what it is given."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.peers.harness.judge import Kind

FOLDER = Path(__file__).resolve().parent.parent
OURS = "decodeonce"  # the peer that is this project: always there, the others are told beside it
PILLOW = "torch_pillow"  # the one whose Pillow says what the pixels are

Batches = Iterable[tuple[Any, Any]]  # uint8 (batch_size, size, size, 3) and labels (batch_size,): arrays or tensors


@dataclass(frozen=True)
class Source:
    """The pictures: plain JPEGs, `tree/train/<wnid>/*.JPEG`, a whole number of batches for each worker.

    An epoch delivers each of them `copies` times, in batches of `batch_size`, shuffled.
    """

    tree: Path
    size: int
    batch_size: int
    workers: int
    copies: int = 1

    @cached_property
    def files(self) -> Sequence[tuple[Path, int]]:
        """Every picture with its label, in an order drawn once, as one draws it before writing shards."""
        folders = sorted((self.tree / "train").iterdir())
        files = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        random.Random(0).shuffle(files)
        return files

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one picture."""
        return self.size, self.size, 3

    @property
    def crop(self) -> int:
        """The side of an augmented image: 224 for rows of 256."""
        return self.size * 7 // 8

    def to_json(self) -> str:
        """For a peer's process."""
        return json.dumps(asdict(self) | {"tree": str(self.tree)})

    @staticmethod
    def from_json(text: str) -> Source:
        """In a peer's process."""
        facts = json.loads(text)
        return Source(**facts | {"tree": Path(facts["tree"])})


Read = Callable[[Source, Path], Callable[[], Batches]]


@dataclass(frozen=True)
class Arm:
    """One way of loading: `read` opens the files in a folder and returns what begins an epoch."""

    name: str
    read: Read
    decodes: bool = False  # in the loop: nothing was built
    exact: bool = True  # pixels are Pillow's, bit for bit; else they only resemble them
    augmented: bool = False  # random resized crop, flip and normalization to float32, as the peer's documentation does
    files_of: str = ""  # the peer whose files it reads, where it has none of its own
    note: str = ""  # what a reader has to know about its row

    @property
    def kind(self) -> Kind:
        """What its images are checked for."""
        return "augmented" if self.augmented else "exact" if self.exact else "about"


@dataclass(frozen=True)
class Peer:
    """`requirements` are installed exactly as they stand, without a resolver, over the environment that `over` names.

    `over`: "torch", an environment with torch, stock Pillow and this project; "nothing"; "here", the Python that runs
    this.
    """

    title: str
    modules: tuple[str, ...]  # imported before any clock is started,
    distributions: tuple[str, ...]  # whose versions are told
    arms: tuple[Arm, ...] = ()
    build_modules: tuple[str, ...] = ()  # or these, where a build needs less
    build: Callable[[Source, Path], None] | None = None  # writes the files into an empty folder
    decoder: str = ""  # what decodes while it builds
    own_decoder: str = ""  # why it cannot build with this project's decoder; "" if it can
    requirements: str = ""
    over: str = "torch"
    debian: tuple[str, ...] = ()  # packages of the system that it needs besides


def peer_names() -> list[str]:
    """All there are: this project, then the others by name."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return sorted(names, key=lambda name: name != OURS)


def load_peer(name: str) -> Peer:
    """The peer of a file here, or of a module by its dotted name; nothing that it needs is imported."""
    peer: Peer = importlib.import_module(name if "." in name else f"bench.peers.{name}").PEER
    return peer
