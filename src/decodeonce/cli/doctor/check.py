"""One line of `prep doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, what was found, and, unless that is well, what to do."""

    name: str
    level: Level
    found: str
    advice: str = ""
