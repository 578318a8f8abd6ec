"""Fuzz targets, which feed arbitrary bytes to the readers of this project. `make fuzz` runs them (see run.py).

Each module of TARGETS has `TestOneInput(data)`, which must return for any bytes, and `seeds()`, the initial inputs. A
module may have `mutate`, which changes an input so that it still passes the first checks of the reader.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Protocol, cast

Mutate = Callable[[bytes, int], bytes]  # takes bytes and a maximum size, returns changed bytes

NAMES = "store table journal plan tar gzip zip imagenet annotation lists class_lists image parquet"
TARGETS = tuple(NAMES.split())


class Target(Protocol):
    """A module of TARGETS."""

    def seeds(self) -> Iterable[bytes]: ...

    def TestOneInput(self, data: bytes) -> None: ...


def load(name: str) -> Target:
    return cast(Target, import_module(f"tests.fuzz.{name}"))


def mutator_of(target: Target) -> Callable[[bytes, int, Random, Mutate], bytes] | None:
    """Return the target's own mutator, or None if libFuzzer's is used.

    A mutator takes an input, a maximum size, a random generator and libFuzzer's mutator.
    """
    return getattr(target, "mutate", None)


def scratch(name: str) -> Path:
    """Create a folder for a target. It is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
