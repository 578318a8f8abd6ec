"""The recipe: everything that decides a store's bytes, chosen by the user or found in the installed decoders.

Every choice among names is a `Literal` here. The recipe, the command line and type checkers take it from here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from decodeonce.store.layout import ContainerName

Fit = Literal["crop", "stretch", "pad"]
Filter = Literal["bilinear", "bicubic", "lanczos", "box"]
Exif = Literal["ignore", "apply"]
OnDamaged = Literal["keep", "reject"]
WithoutBox = Literal["keep", "skip"]
# The other choices decide about a command, not about a recipe. They are here because their rooms import NumPy.
OnBad = Literal["reject", "fail"]
Sort = Literal["class", "source"]
ExportForm = Literal["folder", "webdataset"]
MOST_BOXES = 1000


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise ValueError unless `value` is one of the names of a `Literal`."""
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(get_args(choices))}")


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
    without: what to do with an image that has no box: "keep" it whole, or "skip" it.
    """

    keep: int = 0
    margin: float = 0.0
    least: int = 1
    without: WithoutBox = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= MOST_BOXES:
            raise ValueError(f"boxes to keep are {self.keep}, expected 1 to {MOST_BOXES}")
        if not 0 <= self.margin <= 10:
            raise ValueError(f"the margin is {self.margin}, expected a share of the box's side, 0 to 10")
        if self.least < 1:
            raise ValueError(f"the least box is {self.least} pixels, expected at least 1")
        check_choice("without", self.without, WithoutBox)


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes a row of (height, width, 3) uint8, and how rows lie in shards; checks itself.

    `fit` "crop" is torchvision's Resize and CenterCrop, "stretch" one resize, "pad" a resize inside and black around.
    `shuffle_seed` permutes the samples at plan time, None keeps the source's order. `shard_size` is in bytes. `boxes`
    and `map` are None where there are none.
    """

    height: int = 256
    width: int = 256
    fit: Fit = "crop"
    filter: Filter = "bilinear"
    container: ContainerName = "npy"
    shard_size: int = 32 << 30
    shuffle_seed: int | None = None
    exif: Exif = "ignore"
    on_damaged: OnDamaged = "keep"
    scaled_decode: bool = False
    boxes: BoxRules | None = None
    map: UserMap | None = None

    def __post_init__(self) -> None:
        if not (1 <= self.height <= 16384 and 1 <= self.width <= 16384):
            raise ValueError(f"size is {self.height}x{self.width}, expected 1 to 16384 pixels a side")
        if self.shard_size < 1:
            raise ValueError(f"shard_size is {self.shard_size} bytes, expected at least 1")
        choices = {"fit": Fit, "filter": Filter, "container": ContainerName, "exif": Exif, "on_damaged": OnDamaged}
        for name, allowed in choices.items():
            check_choice(name, getattr(self, name), allowed)
        if self.map and self.scaled_decode:
            raise ValueError("scaled_decode needs the size to be reached, which a map may change: take one of the two")
        if self.map and self.kept_boxes:
            raise ValueError("a map may move things about, and boxes beside the picture would not follow: take one")

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> Recipe:
        """The recipe that a plan or manifest has; the inverse of `facts`, without the decoders."""
        own = {key: value for key, value in facts.items() if key != "decoders"}
        own["on_damaged"] = own.pop("on_odd")
        if own["boxes"] is not None:
            boxes = dict(own["boxes"])
            own["boxes"] = BoxRules(**{**boxes, "without": "keep" if boxes["without"] == "whole" else boxes["without"]})
        if own["map"] is not None:
            own["map"] = UserMap(**own["map"])
        return cls(**own)

    @property
    def boxes_per_row(self) -> int:
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
        """The recipe as manifests and plans write it: `on_damaged` is "on_odd" there, and without="keep" is "whole"."""
        facts = {**asdict(self), "decoders": decoders}
        facts["on_odd"] = facts.pop("on_damaged")
        if self.boxes and self.boxes.without == "keep":
            facts["boxes"]["without"] = "whole"
        return facts


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
