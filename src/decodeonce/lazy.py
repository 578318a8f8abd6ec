"""Import a package's names on first use, so that `import decodeonce` and `prep --help` do not import NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_imports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Create the module functions `__getattr__` and `__dir__` (PEP 562) of a package.

    Args:
        package: The package's `__name__`.
        homes: For each name, the module that defines it.
    """

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return import_name, list_names
