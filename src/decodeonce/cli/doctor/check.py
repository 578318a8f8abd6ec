"""One line of `prep doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad"]

# What a package raises when it is imported that is there in part, or made for another Python, NumPy or machine.
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
class Check:
    """What was looked at, how it is, what was found, and, unless that is well, what to do."""

    name: str
    level: Level
    found: str
    advice: str = ""
