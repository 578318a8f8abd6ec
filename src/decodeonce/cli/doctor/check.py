"""The result of a check of `prep doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

# Errors that importing a package can raise if it is incomplete, or built for another Python, NumPy or machine.
BROKEN_IMPORT = (AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError, SyntaxError)
IMPORT_ERRORS = (*BROKEN_IMPORT, SystemError, TypeError, ValueError)
Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """The level of a check, what was found, and what to do unless it is ok.

    A `warn` works, but not as well as it could or not for everything; `bad` does not work.
    """

    level: Level
    found: str
    advice: str = ""


ok, warn, bad = partial(Finding, "ok"), partial(Finding, "warn"), partial(Finding, "bad")
