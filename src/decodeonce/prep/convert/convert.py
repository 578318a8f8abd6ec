"""Convert stores: another container, other shards, a smaller size, a selection, another order, several joined.

It is a build whose source is stores. After a kill, run it again: the result is byte-identical to an uninterrupted one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from decodeonce.errors import BuildError
from decodeonce.prep.build.build import build
from decodeonce.prep.build.task import Progress, Work
from decodeonce.prep.convert.merge import check_alike
from decodeonce.prep.convert.source import StoreSource
from decodeonce.prep.recipe import Filter, Recipe, Sort, check_choice
from decodeonce.store import Manifest, open_store
from decodeonce.store.layout import ContainerName
from decodeonce.store.select import Selection


@dataclass(frozen=True)
class Conversion:
    """How to convert stores; it checks itself. None keeps what the first store has.

    `size` is (height, width) in pixels, resized with `filter`; `shard_size` is in bytes; `sort` is "class" or "source";
    `shuffle_seed` permutes the selected rows.
    """

    container: ContainerName | None = None
    shard_size: int | None = None
    size: tuple[int, int] | None = None
    filter: Filter | None = None
    selection: Selection = field(default_factory=Selection)
    sort: Sort | None = None
    shuffle_seed: int | None = None

    def __post_init__(self) -> None:
        if self.sort is not None:
            check_choice("sort", self.sort, Sort)
        if self.sort is not None and self.shuffle_seed is not None:
            raise ValueError(f"rows are sorted by {self.sort} or shuffled: take one of the two")
        if self.filter is not None and self.size is None:
            raise ValueError(f"the filter {self.filter} is for another size, and none is given")


def convert(
    stores: Sequence[str | os.PathLike[str]],
    out: Path,
    conversion: Conversion | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Manifest:
    """Make the store `out` of the rows of finished stores, each row checked; the same call resumes after any kill.

    Several stores are joined: their rows follow each other, and classes of one name become one.

    Raises:
        ValueError: If the stores have not what is asked for, such as so many pixels, or a class.
        BuildError, StoreError: If they do not go together, a row is damaged, or `out` cannot be built.
        Stopped: As a build does.
    """
    source, recipe = open_conversion(stores, out, conversion or Conversion())
    # A damaged row fails it in any case, and the rejects of the inputs are none of this build's.
    return build(source, out, recipe, Work(workers=workers, max_bad="0", on_bad="fail"), progress)


def open_conversion(
    stores: Sequence[str | os.PathLike[str]], out: Path, conversion: Conversion
) -> tuple[StoreSource, Recipe]:
    """Return the source and the recipe whose build converts these stores; write nothing. Raises as `convert`."""
    opened = [open_store(path) for path in stores]
    for store in opened:
        store.check_held(range(len(store)), "convert the whole store")
        if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(store.paths.root)):
            raise BuildError(f"{out}: is, or lies in, the store {store.paths.root} to be converted; choose another OUT")
    check_alike([(store.paths.root, store.manifest) for store in opened])
    first, chosen = opened[0].manifest, conversion.selection
    size = smaller_size(first.shape, conversion.size)
    source = StoreSource(
        Path(stores[0]),
        stores=[[os.path.abspath(store.paths.root), store.manifest.digest] for store in opened],
        selection={"classes": list(chosen.classes), "source": chosen.source, "rows": list(chosen.rows)},
        sort=conversion.sort,
        size=size,
    )
    source.classes()  # raises ValueError if a selected class does not exist
    return source, _recipe(conversion, first, opened[0].paths.root, size or first.shape[:2])


def _recipe(conversion: Conversion, first: Manifest, path: Path, size: Sequence[int]) -> Recipe:
    """The recipe of the build. What is not asked for is as in the first store, if its recipe tells."""
    said = first.recipe
    resized_by = said.get("filter", "")
    shard_size = conversion.shard_size or said.get("shard_size")
    try:
        return Recipe(
            height=size[0],
            width=size[1],
            filter=conversion.filter or (resized_by if resized_by in get_args(Filter) else Recipe.filter),
            container=conversion.container or first.container,
            shard_size=shard_size if type(shard_size) is int and shard_size > 0 else Recipe.shard_size,
            shuffle_seed=conversion.shuffle_seed,
        )
    except ValueError as error:  # another writer's rows may be larger than any that a build makes
        raise BuildError(f"{path}: {error}") from None


def smaller_size(shape: tuple[int, int, int], size: tuple[int, int] | None) -> list[int] | None:
    """[height, width] to resize rows of `shape` to, None if they have it; ValueError for larger or another aspect."""
    (old_height, old_width, _), (height, width) = shape, size or shape[:2]
    if (height, width) == (old_height, old_width):
        return None
    rows = f"rows are {old_height}x{old_width}"
    if height > old_height or width > old_width:
        raise ValueError(f"size {height}x{width}: {rows} and hold no more; build from the pictures for larger ones")
    if abs(height * old_width - width * old_height) >= max(old_height, old_width):  # more than a pixel off
        fitting = f"{height}x{max(1, round(height * old_width / old_height))}"
        raise ValueError(f"size {height}x{width}: {rows}, of another aspect, and would be distorted; take {fitting}")
    return [height, width]
