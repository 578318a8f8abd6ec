"""The recipe: the settings that decide a store's bytes, together with the versions of the decoders.

Every string choice is defined once, as a `Literal` in this module. The command line uses the same definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from decodeonce.store.layout import NOT_PAIRED, ContainerName, Json, Paired, PixelsName, check_choice, image_bytes

Fit = Literal["crop", "stretch", "pad"]
Filter = Literal["bilinear", "bicubic", "lanczos", "box"]
Exif = Literal["ignore", "apply"]
OnDamaged = Literal["keep", "reject", "keep-truncated"]
WithoutBox = Literal["keep", "skip"]
# The choices below belong to commands, not to the recipe. They are here because their own modules import NumPy.
OnBad = Literal["reject", "fail"]
BoxOrigin = Literal["0", "1", "edge"]
Sort = Literal["class", "source"]
MOST_BOXES = 1000
MOST_GRAY = 65535


@dataclass(frozen=True)
class UserMap:
    """A map function as a recipe names it.

    Args:
        function: Import path, `package.module:function`.
        xxh3: xxh3_64 of the module's source file, 16 hexadecimal digits.

    Example:
        >>> find_map("maps:darken").function
        'maps:darken'
    """

    function: str
    xxh3: str


@dataclass(frozen=True)
class BoxRules:
    """How to treat the boxes of annotated images.

    Args:
        keep: 0 (default) makes every box a row of its own. K > 0 makes every image a row with up to K boxes, at most
            1000.
        margin: Fraction of the box's width and height to add on each side, 0 (default) to 10.
        least: Leave out boxes with a side shorter than this, in pixels. Default: 1.
        without: What to do with an image without boxes. "keep" (default): use the whole image; "skip": leave it out.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> Recipe(height=224, width=224, boxes=BoxRules(margin=0.1)).boxes
        BoxRules(keep=0, margin=0.1, least=1, without='keep')
    """

    keep: int = 0
    margin: float = 0.0
    least: int = 1
    without: WithoutBox = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= MOST_BOXES:
            raise ValueError(f"number of boxes to keep is {self.keep}, expected 1 to {MOST_BOXES}")
        if not 0 <= self.margin <= 10:
            raise ValueError(f"box margin is {self.margin}, expected 0 to 10 (fraction of the box side)")
        if self.least < 1:
            raise ValueError(f"smallest box side is {self.least} pixels, expected at least 1")
        check_choice("without", self.without, WithoutBox)


@dataclass(frozen=True)
class Recipe:
    """How to turn images into rows of uint8 (height, width, 3), and rows into shards.

    Args:
        height: Height of a row in pixels, 1 to 16384. Default: 256.
        width: Width of a row in pixels, 1 to 16384. Default: 256.
        fit: How to reach the row's size. "crop" (default): resize, then crop the center, like torchvision's Resize and
            CenterCrop. "stretch": resize without keeping the aspect ratio. "pad": resize to fit inside, pad with black.
        filter: Resampling filter: "bilinear" (default), "bicubic", "lanczos" or "box".
        container: File format of the shards. "npy" (default): one .npy file per shard; "hdf5": one .h5 file per shard.
        shard_size: Maximum size of a shard's rows in bytes, but at least one block. Default: 32 GiB.
        shuffle_seed: Permute the rows with this seed when the plan is made. None (default): keep the source's order.
        exif: EXIF rotation. "ignore" (default): keep pixels as stored; "apply": rotate images upright.
        levels: How 12 or 16 bits become 8 bits. None (default): keep the upper 8 bits. "LOW:HIGH", such as
            "0:4095": LOW becomes black and HIGH white. "auto": the lowest and highest value of each image do.
        on_damaged: Whether to "keep" (default) or "reject" a garbled JPEG that can still be decoded. "keep-truncated"
            also keeps truncated images, as Pillow's ``LOAD_TRUNCATED_IMAGES`` does.
        scaled_decode: Let libjpeg-turbo decode large JPEGs at reduced size. Faster, but gives different pixels.
            Default: False.
        boxes: How to treat annotated boxes. None (default): ignore them.
        map: A function to call on each decoded image, from `find_map`. None (default): no map.
        paired: The masks and second images that follow the image in each row. A build takes them from its source.
        pixels: How a row holds its image. "rgb" (default), "yuv420" in half the bytes, or "bc4" in a quarter.

    Raises:
        ValueError: If a value is out of range, or settings conflict.

    Example:
        >>> recipe = Recipe(height=224, width=224, fit="crop", shuffle_seed=0)
        >>> recipe.shape, recipe.row_bytes
        ((224, 224, 3), 150528)
    """

    height: int = 256
    width: int = 256
    fit: Fit = "crop"
    filter: Filter = "bilinear"
    container: ContainerName = "npy"
    shard_size: int = 32 << 30
    shuffle_seed: int | None = None
    exif: Exif = "ignore"
    levels: str | None = None
    on_damaged: OnDamaged = "keep"
    scaled_decode: bool = False
    boxes: BoxRules | None = None
    map: UserMap | None = None
    paired: tuple[Paired, ...] = ()
    pixels: PixelsName = "rgb"

    def __post_init__(self) -> None:
        if not (1 <= self.height <= 16384 and 1 <= self.width <= 16384):
            raise ValueError(f"size is {self.height}x{self.width}, expected 1 to 16384 pixels a side")
        if self.shard_size < 1:
            raise ValueError(f"shard_size is {self.shard_size} bytes, expected at least 1")
        choices = {"fit": Fit, "filter": Filter, "container": ContainerName, "exif": Exif, "on_damaged": OnDamaged}
        for name, allowed in {**choices, "pixels": PixelsName}.items():
            check_choice(name, getattr(self, name), allowed)
        image_bytes(self.pixels, self.shape)  # raises ValueError if rows of this size cannot be stored like this
        if self.levels is not None:
            gray_range(self.levels)
        if self.map:
            self._check_map()
        if self.paired:
            self._check_paired()

    def _check_paired(self) -> None:
        names = [one.name for one in self.paired]
        if wrong := [name for name in names if name in NOT_PAIRED or names.count(name) > 1]:
            expected = f"expected a unique name, not one of {', '.join(NOT_PAIRED)}"
            raise ValueError(f"a paired image is called {wrong[0]!r}, {expected}")

    def _check_map(self) -> None:
        combined = "cannot be combined with a map"
        if self.scaled_decode:
            raise ValueError(f"scaled_decode {combined}: a map may change the image size")
        if self.boxes and self.boxes.keep:
            raise ValueError(f"kept boxes {combined}: boxes would not follow a map that moves pixels")
        if self.paired:
            raise ValueError(f"paired images {combined}: they would not follow a map that moves pixels")

    @classmethod
    def from_facts(cls, facts: Json) -> Recipe:
        """Return the recipe written in a plan or manifest: the inverse of `facts`, without the decoders."""
        own = {key: value for key, value in facts.items() if key != "decoders"}
        own["boxes"] = own["boxes"] and BoxRules(**own["boxes"])
        own["map"] = own["map"] and UserMap(**own["map"])
        own["paired"] = tuple(map(Paired.parse, own.get("paired", ())))
        return cls(**own)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a row's image, (H, W, C)."""
        return (self.height, self.width, 3)

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        paired = self.height * self.width * sum(one.channels for one in self.paired)
        return image_bytes(self.pixels, self.shape) + paired

    def facts(self, decoders: dict[str, str]) -> dict[str, object]:
        """Return the recipe as manifests and plans write it: without what few builds use, unless this one does."""
        facts = {**asdict(self), "decoders": decoders, "paired": [one.text for one in self.paired]}
        unused: dict[str, object] = {"paired": [], "levels": None, "pixels": "rgb"}
        return {name: fact for name, fact in facts.items() if name not in unused or fact != unused[name]}


def gray_range(levels: str) -> tuple[int, int] | None:
    """Return the values of `Recipe.levels` that become black and white; None if they depend on the image.

    Raises:
        ValueError: If `levels` is neither "auto" nor two whole numbers from 0 to 65535, the lower one first.
    """
    if levels == "auto":
        return None
    low, _, high = levels.partition(":")
    if low.isdecimal() and high.isdecimal() and int(low) < int(high) <= MOST_GRAY:
        return int(low), int(high)
    raise ValueError(f"levels are {levels!r}, expected LOW:HIGH with 0 <= LOW < HIGH <= {MOST_GRAY}, or auto")


# The flags of recipe facts that are not named like them.
_FLAGS = {"container": "format", "columns": "column", "keep": "keep_boxes", "least": "min_box"}
_FLAGS |= {"margin": "box_margin", "without": "without_box"}


def as_flags(recipe: Mapping[str, object]) -> dict[str, object]:
    """Return the facts of a recipe by flag, such as {"--size": "192x256"}; "decoders" and other facts have no flag."""
    facts = dict(recipe)
    if {"height", "width"} <= facts.keys():
        height, width = facts.pop("height"), facts.pop("width")
        facts = {"size": height if height == width else f"{height}x{width}", **facts}
    if isinstance(size := facts.get("shard_size"), int) and size % 2**30 == 0:
        facts["shard_size"] = f"{size >> 30}GiB"
    if facts.get("shuffle_seed", 0) is None:
        facts["shuffle_seed"] = "none"
    named = (*Recipe.__dataclass_fields__, *_FLAGS, "size")
    return {f"--{_FLAGS.get(key, key)}".replace("_", "-") if key in named else key: facts[key] for key in facts}


def given_flags(recipe: Mapping[str, object]) -> dict[str, object]:
    """Return `as_flags` for people: without flags that have no value."""
    return {flag: value for flag, value in as_flags(recipe).items() if value is not None and value != ""}


def differences(wanted: Mapping[str, object], planned: Mapping[str, object], *, of: str = "plan") -> list[str]:
    """List how a recipe differs from that of a plan or store, such as "--filter is box, the plan says bilinear"."""
    wanted, planned, found = as_flags(wanted), as_flags(planned), []
    for key in sorted({*wanted, *planned}):
        default = "rgb" if key == "--pixels" else "absent"
        mine, theirs = wanted.get(key, default), planned.get(key, default)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += differences(mine, theirs, of=of)
        elif mine != theirs:
            found.append(f"{key} is {mine}, the {of} says {theirs}")
    return found
