"""Import a package's names on first use, so that `import decodeonce` and `prep --help` do not import NumPy.

A package lists its names once, below `if TYPE_CHECKING:` in its `__init__.py`, where type checkers look for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def listed_names(file: str) -> dict[str, str]:
    """Read the lines `from MODULE import NAME as NAME` of an `__init__.py`; return the module of each name."""
    with open(file, encoding="utf-8") as lines:
        words = [line.split() for line in lines if line.startswith("    from ") and " as " in line]
    return {name: module for _, module, _, name, *_ in words}


def lazy_imports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Create `__getattr__` and `__dir__` (PEP 562) of a package from its `__name__` and `__file__`, also `__all__`."""

    def import_name(name: str) -> Any:
        homes = listed_names(file)
        if name == "__all__":
            return sorted(homes)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return import_name, lambda: sorted({*vars(sys.modules[package]), *listed_names(file)})
