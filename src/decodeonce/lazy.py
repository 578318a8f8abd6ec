"""Import a package's names on first use, so that `import decodeonce` and `prep --help` do not import NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any


def lazy_imports(package: str, modules: Sequence[str] = ()) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Create `__getattr__` and `__dir__` (PEP 562) of a package from its imports below `if TYPE_CHECKING:`.

    The former has `__all__`, too. `modules` are the package's public modules, which `__getattr__` imports, too.
    """
    return partial(_import_name, package, modules), partial(_public_names, package, modules)


@cache
def _homes(package: str) -> dict[str, str | None]:
    """Return the module that defines each name of a package."""
    import ast

    module: Any = sys.modules[package]
    tree = ast.parse(module.__spec__.loader.get_data(module.__file__))  # also from a zip
    imports = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    return {name.name: node.module for node in imports if isinstance(node, ast.ImportFrom) for name in node.names}


def _import_name(package: str, modules: Sequence[str], name: str) -> Any:
    if name == "__all__":
        return sorted(_homes(package))
    if name in modules:
        return import_module(f"{package}.{name}")
    if home := _homes(package).get(name):
        return getattr(import_module(home), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


def _public_names(package: str, modules: Sequence[str]) -> list[str]:
    names = {name for name in vars(sys.modules[package]) if name[:2] == "__"}
    return sorted({*names, *_homes(package), *modules})
