"""Run a user's function, `package.module:function`, on each decoded image in the workers, before the resize."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.listing import LeftOut, PixelBox, Undecodable, refuse_masked
from decodeonce.prep.recipe import UserMap
from decodeonce.prep.user_code import ClosedFiles, import_function, raised_text, user_code
from decodeonce.store.hashing import file_hexdigest
from decodeonce.store.pixels import Pixels

FLAG = "--map "  # before the name of a map in messages


@dataclass(frozen=True)
class MapSample:
    """What a map function receives about an image, in addition to its pixels.

    Args:
        source: Path of the image relative to SRC.
        label: Class index.
        class_name: Class name.
        width: Width of the source image in pixels, as stored.
        height: Height of the source image in pixels, as stored.
        box: Pixel box (left, top, right, bottom) if the image was cut from a larger one; otherwise None.

    Example:
        >>> def darken(pixels, sample):
        ...     return pixels // 2 if sample.class_name == "n01440764" else None
        >>> sample = MapSample("n01440764/1.JPEG", 0, "n01440764", width=1, height=1, box=None)
        >>> darken(np.full((1, 1, 3), 200, np.uint8), sample).tolist()
        [[[100, 100, 100]]]
    """

    source: str
    label: int
    class_name: str
    width: int
    height: int
    box: PixelBox | None


MapFunction = Callable[[Pixels, MapSample], object]


def find_map(name: str) -> UserMap:
    """Import a map function and return it as a recipe names it, with the digest of its module.

    Args:
        name: Import path, `package.module:function`.

    Returns:
        The map, for `Recipe(map=...)`.

    Raises:
        BuildError: The function cannot be imported.

    Example:
        >>> recipe = Recipe(map=find_map("maps:darken"))  # the function `darken` of ./maps.py
        >>> build(open_folder("imagenet/val"), Path("dark.store"), recipe).count
        16
    """
    _, path = _import(name)
    return UserMap(name, file_hexdigest(path))


def _import(name: str) -> tuple[MapFunction, Path]:
    """Return the function and the file of its module."""
    function = import_function(name, FLAG, Path.cwd())
    module_name = name.partition(":")[0]
    path = Path(getattr(sys.modules[module_name], "__file__", None) or "none")
    if path.suffix != ".py":
        raise BuildError(f"--map {name}: {module_name} has no source file, expected a module written in Python")
    return function, path


class LoadedMap:
    """The imported function of a recipe's map. Raises BuildError if its module changed since the plan."""

    def __init__(self, wanted: UserMap) -> None:
        self._name = wanted.function
        self._function, path = _import(wanted.function)
        found = file_hexdigest(path)
        if found != wanted.xxh3:
            raise BuildError(
                f"{path}: the map {self._name} changed since the plan (xxh3_64 {found}, planned {wanted.xxh3}); "
                "restore it, or remove OUT and build again"
            )

    def __call__(self, pixels: Pixels, sample: MapSample) -> Pixels:
        """Call the map on an image.

        Args:
            pixels: (H, W, 3) uint8; the map may change them in place.
            sample: What the map receives about the image.

        Returns:
            The map's image, (H, W, 3) uint8.

        Raises:
            LeftOut: The map returned None.
            Undecodable: The map raised an exception, or returned something that is not an image.
            Stopped: The map ran out of memory.
        """
        try:
            with user_code(FLAG):
                made = self._function(pixels, sample)
        except MemoryError:
            raise Stopped(
                f"{sample.source}: {self._name} is out of memory; run the same command again with fewer --workers"
            ) from None
        except ClosedFiles:
            raise
        except (Exception, SystemExit) as error:  # a user's function may raise anything, which must not end the build
            raise Undecodable(f"{self._name}: {raised_text(error)}") from None
        if made is None:
            raise LeftOut(f"left out by {self._name}")
        if not isinstance(made, np.ndarray) or made.dtype != np.uint8 or made.ndim != 3 or made.shape[2] != 3:
            found = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__
            raise Undecodable(f"{self._name}: returned {found}, expected uint8 (H, W, 3) or None")
        refuse_masked(f"{self._name}: what it returned", made)
        if not made.size:
            raise Undecodable(f"{self._name}: returned an empty image, {made.shape}")
        return np.ascontiguousarray(made)
