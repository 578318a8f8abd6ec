"""The result of a check of `prep doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Errors that importing a package can raise if it is incomplete, or built for another Python, NumPy or machine.
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


Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """The level of a check, what was found, and what to do unless it is ok."""

    level: Level
    found: str
    advice: str = ""


def ok(found: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding("ok", found)


def warn(found: str, advice: str) -> Finding:
    """Return a finding that works, but not as well as it could or not for everything."""
    return Finding("warn", found, advice)


def bad(found: str, advice: str) -> Finding:
    """Return a finding that does not work."""
    return Finding("bad", found, advice)
