"""Convert finished stores to a new store.

A conversion is a build whose source is stores. If it is killed, run it again: the result is byte-identical to an
uninterrupted conversion.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from decodeonce.errors import BuildError
from decodeonce.prep.building.build import build
from decodeonce.prep.building.pool import Progress, WorkSettings
from decodeonce.prep.convert.rows import shape_text
from decodeonce.prep.convert.source import StoreSource, with_container
from decodeonce.prep.recipe import Filter, Recipe, Sort, differences
from decodeonce.store import Manifest, Store, open_store
from decodeonce.store.layout import FORMS, ContainerName, Json, PixelsName, check_choice
from decodeonce.store.select import Selection, labels_of

FIXED = ("labels.npy", "checksums.npy")  # every store has these files, so no column can use them


@dataclass(frozen=True)
class Conversion:
    """What to change when stores are converted. None keeps the setting of the first store.

    Args:
        container: Container of the new store, "npy" or "hdf5".
        shard_size: Maximum size of a shard, in bytes.
        size: (height, width) of the rows in pixels. It must not be larger than the stored rows and must keep their
            aspect ratio.
        filter: Filter that resizes rows to `size`: "bilinear", "bicubic", "lanczos" or "box".
        pixels: How a row holds its image, "rgb", "yuv420" or "bc4".
        selection: Rows to take; all rows by default.
        sort: Order of the rows. "class": by label; "source": by the bytes of the source names. The sort is stable.
        shuffle_seed: Seed of a permutation of the selected rows. It cannot be combined with `sort`.

    Raises:
        ValueError: If arguments are invalid or conflict.

    Example:
        >>> Conversion(size=(128, 128), sort="class")  # smaller rows, sorted by class
        Conversion(container=None, shard_size=None, size=(128, 128), filter=None, ...
    """

    container: ContainerName | None = None
    shard_size: int | None = None
    size: tuple[int, int] | None = None
    filter: Filter | None = None
    pixels: PixelsName | None = None
    selection: Selection = field(default_factory=Selection)
    sort: Sort | None = None
    shuffle_seed: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("sort", Sort), ("pixels", PixelsName)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), choices)
        if self.sort is not None and self.shuffle_seed is not None:
            raise ValueError(f"rows cannot be both sorted (by {self.sort}) and shuffled: choose one")
        if self.filter is not None and self.size is None:
            raise ValueError(f"filter {self.filter} has no effect without a size: give a size, too")


def convert(
    stores: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    conversion: Conversion | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Manifest:
    """Write the rows of finished stores to a new store, and check the checksum of each row.

    Several stores are merged, if they have the same recipe, classes and columns: their rows follow each other. If the
    call is interrupted, repeat it with the same arguments to resume.

    Args:
        stores: Paths of the finished stores.
        out: Path of the new store.
        conversion: What to change; None copies the rows as they are.
        workers: Number of worker processes; None starts one per usable core.
        progress: Function that is called with the `Progress` of the build.

    Returns:
        The manifest of the new store.

    Raises:
        ValueError: If the stores cannot satisfy the conversion, for example lack a selected class.
        BuildError: If the stores cannot be merged, or `out` cannot be created or resumed.
        StoreError: If a row or file of a store is damaged.
        Stopped: If the conversion was interrupted and can be resumed.

    Example:
        >>> convert(["train.store"], Path("small.store"), Conversion(size=(128, 128))).shape
        (128, 128, 3)
    """
    source, recipe = open_conversion(stores, out, conversion or Conversion())
    # No rejects are allowed: a damaged row fails the build anyway, and rejects of the inputs do not count here.
    return build(source, out, recipe, WorkSettings(workers=workers, max_bad="0", on_bad="fail"), progress)


def open_conversion(
    stores: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str], conversion: Conversion
) -> tuple[StoreSource, Recipe]:
    """Return the source and the recipe of the build that converts these stores; write nothing. Raises as `convert`."""
    opened = [open_store(path) for path in stores]
    for store in opened:
        store.images.check_held(range(len(store)), "convert the whole store")
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(store.paths.root)):
            raise BuildError(f"{out}: is the input store {store.paths.root} or inside it; choose another OUT")
    check_mergeable(opened)
    first, selection = opened[0].manifest, conversion.selection
    size = smaller_size(first.shape, conversion.size)
    source = StoreSource(
        Path(stores[0]),
        stores=[[os.path.abspath(store.paths.root), store.manifest.digest] for store in opened],
        selection={"classes": list(selection.classes), "source": selection.source, "rows": list(selection.rows)},
        sort=conversion.sort,
        size=size,
    )
    labels_of(selection.classes, first.classes)  # raises ValueError if a selected class does not exist
    # Settings that the conversion leaves open come from the first store, which another writer may have made.
    height, width = size or first.shape[:2]
    pixels = conversion.pixels or first.pixels
    if height % (multiple := FORMS[pixels].multiple) or width % multiple:
        found = f"rows of {height}x{width}, but {pixels} needs a height and width divisible by {multiple}"
        raise BuildError(f"{opened[0].paths.root}: {found}; {_advised_size(first.shape, multiple)}")
    stored_filter, shard_size = first.recipe.get("filter", ""), first.recipe.get("shard_size")
    try:
        return source, Recipe(
            height=height,
            width=width,
            filter=conversion.filter or (stored_filter if stored_filter in get_args(Filter) else Recipe.filter),
            container=conversion.container or first.container,
            shard_size=conversion.shard_size
            or (shard_size if type(shard_size) is int and shard_size > 0 else Recipe.shard_size),
            shuffle_seed=conversion.shuffle_seed,
            paired=first.paired,
            pixels=pixels,
        )
    except ValueError as error:  # rows of another writer may be larger than a build can make
        raise BuildError(f"{opened[0].paths.root}: {error}") from None


def _advised_size(shape: tuple[int, int, int], multiple: int) -> str:
    """Advise the largest --size with the aspect ratio of rows of this shape that is divisible by `multiple`."""
    height, width, _ = shape
    common = math.gcd(height, width)
    step = math.lcm(*(multiple // math.gcd(multiple, side // common) for side in (height, width)))
    if times := common // step * step:
        return f"pass --size {height // common * times}x{width // common * times}"
    return "build the store again with such a --size"


def check_mergeable(stores: Sequence[Store]) -> None:
    """Raise BuildError unless the rows of all these stores can be in one store."""
    path, first = stores[0].paths.root, stores[0].manifest
    for store in stores[1:]:
        if found := differences(_shared_facts(store.manifest), _shared_facts(first), of="first store"):
            what = "; ".join(found[:3]) + ("; ..." if len(found) > 3 else "")
            raise BuildError(
                f"{store.paths.root}: cannot be merged with {path}: {what}; expected the same recipe, classes and "
                "columns: build both with the same flags and --classes, or see `prep column --help`"
            )
    if first.shape[2] != 3:
        raise BuildError(f"{path}: rows are {shape_text(first.shape)}; only rows with 3 channels can be converted")
    names = [column.name for column in first.columns]
    for column in first.columns:
        if column.file in FIXED or column.file.startswith("images-") or names.count(column.name) > 1:
            raise BuildError(f"{path}: column {column.name!r} is in {column.file}, expected a unique name and file")


def _shared_facts(manifest: Manifest) -> Json:
    """Return what all rows of a store have in common."""
    recipe = with_container(manifest.recipe, {"container": "", "shard_size": 0, "decoders": {}})
    return {
        **{name: value for name, value in recipe.items() if name not in ("selected", "shuffle_seed")},
        "rows": shape_text(manifest.shape),
        "pixels": manifest.pixels,
        "paired": [one.text for one in manifest.paired],
        "box labels": "nameless" if manifest.box_classes is None else "named",
        **{f"class {label}": one.name for label, one in enumerate(manifest.classes)},
        **{f"box class {label}": name for label, name in enumerate(manifest.box_classes or ())},
        **{f"column {one.name}": f"{one.dtype}{list(one.shape)}" for one in manifest.columns},
    }


def smaller_size(shape: tuple[int, int, int], size: tuple[int, int] | None) -> list[int] | None:
    """Return [height, width] to resize rows of `shape` to, or None if no resize is needed.

    Raises ValueError if `size` is larger than the rows or has another aspect ratio.
    """
    (old_height, old_width, _), (height, width) = shape, size or shape[:2]
    if (height, width) == (old_height, old_width):
        return None
    rows = f"the rows, {old_height}x{old_width}"
    if height > old_height or width > old_width:
        raise ValueError(f"size {height}x{width} is larger than {rows}; build from the images to get larger rows")
    if abs(height * old_width - width * old_height) >= max(old_height, old_width):  # more than a pixel off
        fitting = f"{height}x{max(1, round(height * old_width / old_height))}"
        raise ValueError(f"size {height}x{width} has another aspect ratio than {rows}; use {fitting}")
    return [height, width]
