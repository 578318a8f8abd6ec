"""The recipe: everything that decides a store's bytes, chosen by the user or found in the installed decoders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodeonce.store.containers import CONTAINERS

FITS = ("crop", "stretch", "pad")
FILTERS = ("bilinear", "bicubic", "lanczos", "box")
EXIF = ("ignore", "apply")
ODD = ("keep", "reject")
NO_BOX = ("whole", "skip")
MOST_BOXES = 1000


@dataclass(frozen=True)
class UserMap:
    """A map as recipes name it: `package.module:function`, and the xxh3_64 of its module's source."""

    function: str
    xxh3: str


@dataclass(frozen=True)
class BoxRules:
    """What becomes of the boxes that somebody drew; checks itself.

    keep: 0 makes every object a row of its own, K keeps up to K boxes beside the whole picture. margin: a share of the
    box's width and height that is added on each side. least: objects with a shorter side, in pixels, are left out.
    without: what becomes of a picture with no box, "whole" or "skip".
    """

    keep: int = 0
    margin: float = 0.0
    least: int = 1
    without: str = "whole"

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= MOST_BOXES:
            raise ValueError(f"boxes to keep are {self.keep}, expected 1 to {MOST_BOXES}")
        if not 0 <= self.margin <= 10:
            raise ValueError(f"the margin is {self.margin}, expected a share of the box's side, 0 to 10")
        if self.least < 1:
            raise ValueError(f"the least box is {self.least} pixels, expected at least 1")
        if self.without not in NO_BOX:
            raise ValueError(f"what becomes of pictures without a box is {self.without!r}, expected whole or skip")


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes a row of (height, width, 3) uint8, and how rows lie in shards; checks itself.

    `fit` "crop" is torchvision's Resize and CenterCrop, "stretch" one resize, "pad" a resize inside and black around.
    `shuffle_seed` permutes the samples at plan time, None keeps the source's order. `shard_size` is in bytes. `boxes`
    and `map` are None where there are none.
    """

    height: int = 256
    width: int = 256
    fit: str = "crop"
    filter: str = "bilinear"
    container: str = "npy"
    shard_size: int = 32 << 30
    shuffle_seed: int | None = None
    exif: str = "ignore"
    on_odd: str = "keep"
    scaled_decode: bool = False
    boxes: BoxRules | None = None
    map: UserMap | None = None

    def __post_init__(self) -> None:
        if not (1 <= self.height <= 16384 and 1 <= self.width <= 16384):
            raise ValueError(f"size is {self.height}x{self.width}, expected 1 to 16384 pixels a side")
        if self.shard_size < 1:
            raise ValueError(f"shard_size is {self.shard_size} bytes, expected at least 1")
        choices = {"fit": FITS, "filter": FILTERS, "container": tuple(CONTAINERS), "exif": EXIF, "on_odd": ODD}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(allowed)}")
        if self.map and self.scaled_decode:
            raise ValueError("scaled_decode needs the size to be reached, which a map may change: take one of the two")
        if self.map and self.kept_boxes:
            raise ValueError("a map may move things about, and boxes beside the picture would not follow: take one")

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Recipe:
        """The recipe that a plan or manifest has; the inverse of `facts`, without the decoders."""
        own = {key: value for key, value in facts.items() if key != "decoders"}
        for key, kind in (("boxes", BoxRules), ("map", UserMap)):
            if own[key] is not None:
                own[key] = kind(**own[key])
        return cls(**own)

    @property
    def boxes_a_row(self) -> int:
        """How many boxes a plan has for each row."""
        return max(1, self.boxes.keep) if self.boxes else 0

    @property
    def kept_boxes(self) -> int:
        """How many boxes are kept beside each row, at most."""
        return self.boxes.keep if self.boxes else 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of a row."""
        return (self.height, self.width, 3)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.height * self.width * 3

    def facts(self, decoders: dict[str, str]) -> dict[str, Any]:
        """The recipe as manifests and plans write it."""
        return {**asdict(self), "decoders": decoders}


def differences(wanted: dict[str, Any], planned: dict[str, Any], *, of: str = "plan") -> list[str]:
    """What differs between a recipe and that of a plan or store: "filter is box, the plan says bilinear"."""
    found = []
    for key in sorted({*wanted, *planned}):
        mine, theirs = wanted.get(key, "absent"), planned.get(key, "absent")
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += differences(mine, theirs, of=of)
        elif mine != theirs:
            found.append(f"{key} is {mine}, the {of} says {theirs}")
    return found
