"""How many rejects a build may have: a share of all candidates, or a number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted


def reject_error(reject: object) -> BuildError:
    """The error for a reject if the build is to fail at the first one."""
    return BuildError(f"{reject}; repair or remove it, or build with --on-bad reject")


@dataclass(frozen=True)
class Allowance:
    """`share` of the candidates, or `number` pictures, whichever is given; counted over the whole build."""

    text: str
    share: Fraction | None
    number: int

    @classmethod
    def parse(cls, text: str) -> Allowance:
        """The allowance of "0.1%" or "25"; ValueError for anything else."""
        if not re.fullmatch(r"\d+|\d+(\.\d+)?%", text):
            raise ValueError(f"max-bad is {text!r}, expected a number of pictures (25) or a share (0.1%)")
        if text.endswith("%"):
            return cls(text, Fraction(text[:-1]) / 100, 0)
        return cls(text, None, int(text))

    def allowed(self, candidates: int) -> int:
        """How many of so many candidates may be rejects."""
        return int(self.share * candidates) if self.share is not None else self.number

    def check(self, rejects: int, candidates: int, first: str, out: Path) -> None:
        """Raise BuildError where there are more rejects than allowed, of which `first` is one with its reason.

        What is done in `out` is kept, and a rerun may allow more.
        """
        allowed = self.allowed(candidates)
        if rejects > allowed:
            raise BuildError(
                f"{rejects} of {candidates} pictures are rejects, --max-bad {self.text} allows {allowed}; first "
                f"{first}; `prep status {quoted(str(out))}` lists them; run the same command with a higher --max-bad: "
                "what is done is kept"
            )
