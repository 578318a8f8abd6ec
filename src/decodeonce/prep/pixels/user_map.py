"""A user's own function on each decoded picture, `package.module:function`, run in the workers before the fit."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.pixels.geometry import PixelBox
from decodeonce.prep.recipe import UserMap
from decodeonce.store.hashing import file_chunks, file_hexdigest

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class MapSample:
    """What a map is told of a picture: where it came from, its label, its size as stored, and its box if it is one."""

    source: str
    label: int
    class_name: str
    width: int
    height: int
    box: PixelBox | None


MapFunction = Callable[[Pixels, MapSample], Any]


def find_map(name: str) -> UserMap:
    """The map of this name, with its module's digest; BuildError where it cannot be had."""
    _, path = _import(name)
    return UserMap(name, file_hexdigest(file_chunks(path)))


def load_map(wanted: UserMap) -> MapFunction:
    """The function of a recipe's map; BuildError where it is another one than the recipe's."""
    function, path = _import(wanted.function)
    found = file_hexdigest(file_chunks(path))
    if found != wanted.xxh3:
        raise BuildError(
            f"{path}: the map {wanted.function} changed since the plan (xxh3_64 {found}, planned {wanted.xxh3}); "
            "put it back, or remove OUT and build again"
        )
    return function


def _import(name: str) -> tuple[MapFunction, Path]:
    """The function, and the file of its module. The current folder counts, as with `python -m`, but comes last."""
    module_name, _, function_name = name.partition(":")
    if not all(map(str.isidentifier, [*module_name.split("."), function_name])):
        raise BuildError(f"--map {name}: expected package.module:function, as in mymap:f for f of ./mymap.py")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise BuildError(
            f"--map {name}: {error}; run from the folder that has {module_name.split('.')[0]}, or set PYTHONPATH"
        ) from None
    except Exception as error:  # whatever a user's module raises
        raise BuildError(
            f"--map {name}: importing {module_name} raised {type(error).__name__}: {error}; "
            f"see it with: python -c 'import {module_name}'"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise BuildError(f"--map {name}: {module_name} has no function {function_name}")
    path = Path(getattr(module, "__file__", None) or "none")
    if path.suffix != ".py":
        raise BuildError(f"--map {name}: {module_name} has no source file, expected a module written in Python")
    return function, path


class MapError(Exception):
    """A map raised something, or returned what is no picture."""


def apply_map(function: MapFunction, pixels: Pixels, sample: MapSample) -> Pixels | None:
    """What the map makes of a picture (HxWx3 uint8, its own to change), or None; raises MapError."""
    try:
        made = function(pixels, sample)
    except MemoryError:
        raise
    except Exception as error:  # a user's function may raise anything, and none of it may end the night's job
        raise MapError(f"{type(error).__name__}: {error}") from error
    if made is None:
        return None
    if not isinstance(made, np.ndarray) or made.dtype != np.uint8 or made.ndim != 3 or made.shape[2] != 3:
        found = f"{made.dtype} {made.shape}" if isinstance(made, np.ndarray) else type(made).__name__
        raise MapError(f"returned {found}, expected uint8 (H, W, 3) or None")
    if not made.size:
        raise MapError(f"returned an empty picture, {made.shape}")
    return np.ascontiguousarray(made)
