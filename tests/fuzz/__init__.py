"""Fuzz targets, which feed arbitrary bytes to the readers of this project. `make fuzz` runs them (see run.py).

Each module of TARGETS has `TestOneInput(data)`, which must return for any bytes, and `seeds()`, the initial inputs. A
module may have `mutate`, which changes an input so that it still passes the first checks of the reader. It takes an
input, a maximum size, a random generator and libFuzzer's mutator.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

Mutate = Callable[[bytes, int], bytes]  # takes bytes and a maximum size, returns changed bytes

NAMES = "store table journal plan tar gzip zip imagenet annotation lists class_lists image parquet"
TARGETS = tuple(NAMES.split())


def load(name: str) -> ModuleType:
    return import_module(f"tests.fuzz.{name}")


def scratch(name: str) -> Path:
    """Create a folder for a target. It is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
