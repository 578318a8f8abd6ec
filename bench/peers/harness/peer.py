"""The definition of a peer, and the images that it gets."""

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
OURS = "decodeonce"  # this project; it is always measured, and the others are compared with it
PILLOW = "torch_pillow"  # the peer whose Pillow decodes the expected pixels

Batches = Iterable[tuple[Any, Any]]  # uint8 (batch_size, size, size, 3) and labels (batch_size,): arrays or tensors


@dataclass(frozen=True)
class Source:
    """The images: plain JPEGs, `tree/train/<wnid>/*.JPEG`, enough for a whole number of batches per worker.

    An epoch delivers each image `copies` times, in shuffled batches of `batch_size`.
    """

    tree: Path
    size: int
    batch_size: int
    workers: int
    copies: int = 1

    @cached_property
    def files(self) -> Sequence[tuple[Path, int]]:
        """All images with their labels, shuffled once, as is usual before writing shards."""
        folders = sorted((self.tree / "train").iterdir())
        files = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        random.Random(0).shuffle(files)
        return files

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image."""
        return self.size, self.size, 3

    @property
    def crop(self) -> int:
        """Side of an augmented image: 224 for rows of 256 and more."""
        return min(224, self.size * 7 // 8)

    def to_json(self) -> str:
        """Serialize the source for a peer's process."""
        return json.dumps(asdict(self) | {"tree": str(self.tree)})

    @staticmethod
    def from_json(text: str) -> Source:
        """Parse the result of to_json()."""
        facts = json.loads(text)
        return Source(**facts | {"tree": Path(facts["tree"])})


Read = Callable[[Source, Path], Callable[[], Batches]]


@dataclass(frozen=True)
class Arm:
    """A way of loading. `read` opens the files in a folder and returns a function that starts an epoch."""

    name: str
    read: Read
    decodes: bool = False  # whether it decodes JPEGs in the loop instead of reading built files
    exact: bool = True  # whether pixels are identical to Pillow's; otherwise they are similar
    stretched: bool = False  # whether images are stretched to squares; then they are similar to Pillow's stretched ones
    unit_range: bool = False  # whether pixels are float32 between 0 and 1, unless augmented; otherwise they are uint8
    augmented: bool = False  # whether it crops, flips and normalizes to float32, as the peer's documentation does
    files_of: str = ""  # name of another peer whose built files it reads
    note: str = ""  # a note for its row in the table
    prepare: Callable[[Source, Path], None] | None = None  # writes what `read` opens, untimed, for arms that decode

    @property
    def kind(self) -> Kind:
        """How its images are checked."""
        if self.augmented or self.stretched:
            return "augmented" if self.augmented else "stretched"
        return "exact" if self.exact else "about"


@dataclass(frozen=True)
class Peer:
    """A data loader to compare with.

    `requirements` are installed with exactly these versions, without a resolver, on top of the environment `over`:
    "torch" has torch, stock Pillow and this project; "nothing" is empty; "here" is the running Python.
    """

    title: str
    modules: tuple[str, ...]  # imported before timing starts
    distributions: tuple[str, ...]  # packages whose versions are printed
    arms: tuple[Arm, ...] = ()
    build_modules: tuple[str, ...] = ()  # imported instead of `modules` before a build, if set
    build: Callable[[Source, Path], None] | None = None  # writes files into an empty folder
    decoder: str = ""  # name of the decoder that it builds with
    own_decoder: str = ""  # why it cannot build with this project's decoder; "" if it can
    requirements: str = ""
    over: str = "torch"
    debian: tuple[str, ...] = ()  # Debian packages that it needs


def peer_names() -> list[str]:
    """Return the names of all peers, this project first."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    return sorted(names, key=lambda name: name != OURS)


def load_peer(name: str) -> Peer:
    """Return the peer of a file in bench/peers, or of a module given by its dotted name; import no requirements."""
    peer: Peer = importlib.import_module(name if "." in name else f"bench.peers.{name}").PEER
    return peer
