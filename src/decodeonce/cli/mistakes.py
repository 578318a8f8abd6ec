"""What a mistyped command line is told: one line, and what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

NOT_ONE_OF = re.compile(r"(?:Value error, )?(?P<value>.*) is not one of (?P<choices>'.*')\.?", re.DOTALL)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Of the known names the one most like `name`, as the end of a sentence: ", did you mean X?"; "" where none is."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""


def usage_text(error: Any) -> str:
    """The line for a UsageError of click or Typer; some versions of them guess, too, each in words of its own."""
    if hasattr(error, "possibilities"):  # no such option
        options = [name for param in error.ctx.command.params for name in param.opts]
        return f"{error.message}{did_you_mean(error.option_name, options)}"
    whole = error.format_message()
    choice = NOT_ONE_OF.fullmatch(error.message)
    if choice is None:
        return " ".join(whole.split())  # where one of a few is missing, they are listed with tabs
    known = re.findall("'(.*?)'", choice["choices"])
    hint = did_you_mean(choice["value"].strip("'\""), known)
    return f"{whole.removesuffix(error.message)}{choice['value']} is not one of {', '.join(known)}{hint}"
