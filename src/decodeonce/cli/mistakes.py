"""Messages for usage errors: one line, with a suggestion if something similar exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

NOT_ONE_OF = re.compile(r"(?:Value error, )?(?P<value>.*) is not one of (?P<choices>'.*')\.?", re.DOTALL)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ", did you mean X?" for the known name most similar to `name`, or "" if none is similar."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""


def usage_text(error: Any) -> str:
    """Return one line for a UsageError of click or Typer, whose own suggestions differ between versions."""
    if hasattr(error, "possibilities"):  # no such option
        options = [name for param in error.ctx.command.params for name in param.opts]
        return f"{error.message}{did_you_mean(error.option_name, options)}"
    whole = error.format_message()
    choice = NOT_ONE_OF.fullmatch(error.message)
    if choice is None:
        return " ".join(whole.split())  # a missing choice is listed with tabs and line breaks
    known = re.findall("'(.*?)'", choice["choices"])
    hint = did_you_mean(choice["value"].strip("'\""), known)
    return f"{whole.removesuffix(error.message)}{choice['value']} is not one of {', '.join(known)}{hint}"
