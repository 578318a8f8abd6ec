"""What a check of `prep doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What importing a package may raise if it is incomplete, or built for another Python, NumPy or machine.
IMPORT_ERRORS = (
    ImportError,
    AttributeError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    SystemError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Finding:
    """How something is, what was found, and, unless it is ok, what to do."""

    level: Literal["ok", "warn", "bad"]
    found: str
    advice: str = ""


def ok(found: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", found)


def warn(found: str, advice: str) -> Finding:
    """Something that works, but not as well as it could, or not for everything."""
    return Finding("warn", found, advice)


def bad(found: str, advice: str) -> Finding:
    """Something that does not work."""
    return Finding("bad", found, advice)
