"""Import a package's names on first use, so that `import decodeonce` and `prep --help` do not import NumPy.

Type checkers need the imports below `if TYPE_CHECKING:`, too. A test compares both lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_imports(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Create `__getattr__` and `__dir__` (PEP 562) of a package from the names in each module, also `__all__`.

    `modules` are its public modules, which `__getattr__` imports, too.
    """
    homes = {name: module for module, own in names.items() for name in own}

    def import_name(name: str) -> Any:
        if name == "__all__":
            return sorted(homes)
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def public_names() -> list[str]:
        return sorted({*(name for name in vars(sys.modules[package]) if name[:2] == "__"), *homes, *modules})

    return import_name, public_names
