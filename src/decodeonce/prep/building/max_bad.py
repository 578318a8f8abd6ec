"""How many rejects a build may have: a percentage of all candidates, or a number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted


def reject_error(reject: object) -> BuildError:
    """Return the error for a reject with --on-bad fail."""
    return BuildError(f"{reject}; repair or remove the image, or pass --on-bad reject")


@dataclass(frozen=True)
class Allowance:
    """The maximum number of rejects over a whole build.

    Args:
        text: The limit as the user wrote it.
        share: Maximum fraction of the candidates; None if `number` applies.
        number: Maximum number of images, if `share` is None.
    """

    text: str
    share: Fraction | None
    number: int

    @classmethod
    def parse(cls, text: str) -> Allowance:
        """Parse a limit such as "0.1%" or "25".

        Raises:
            ValueError: If the text is neither a number nor a percentage.
        """
        if not re.fullmatch(r"\d+|\d+(\.\d+)?%", text):
            raise ValueError(f"max-bad is {text!r}, expected a number of images (25) or a percentage (0.1%)")
        if text.endswith("%"):
            return cls(text, Fraction(text[:-1]) / 100, 0)
        return cls(text, None, int(text))

    def allowed(self, candidates: int) -> int:
        """Return how many of `candidates` may be rejects."""
        return int(self.share * candidates) if self.share is not None else self.number

    def check(self, rejects: int, candidates: int, first: str, out: Path) -> None:
        """Raise BuildError if there are more rejects than allowed.

        Completed blocks in `out` are kept, so a rerun may pass a higher limit.

        Args:
            rejects: Number of rejects so far.
            candidates: Number of samples that the source listed.
            first: The first reject with its reason.
            out: Folder of the store.
        """
        allowed = self.allowed(candidates)
        if rejects > allowed:
            raise BuildError(
                f"{rejects} of {candidates} images are rejects, --max-bad {self.text} allows {allowed}; first "
                f"{first}; list them with `prep status {quoted(str(out))}`; to continue, run the same command with a "
                "higher --max-bad: completed blocks are kept"
            )
