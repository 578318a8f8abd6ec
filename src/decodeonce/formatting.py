"""Format sizes, times, counts, names and URLs for messages, and names for commands that users paste."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"))


def size_text(nbytes: int) -> str:
    """Format bytes in the largest unit that gives at least 0.1: "252.15 GB", "0.10 GB", "20.97 MB"."""
    for unit, name in UNITS:
        if 10 * nbytes >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} bytes"


def duration_text(seconds: float) -> str:
    """Format seconds in a readable unit: "under a second", "95 s", "17 min", "3.5 h"."""
    if seconds < 1:
        return "under a second"
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun: "1 reject", "2,999 rejects". Pass `many` if the plural is not `one` plus "s"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def no_option(path: Path) -> str:
    """Return a path as text that no command mistakes for an option.

    Example:
        >>> no_option(Path("-x"))
        './-x'
    """
    return f"./{path}" if str(path).startswith("-") else str(path)


def quoted(text: str | Path) -> str:
    """Quote a text, or a path as `no_option` returns it, as one bash word that users can paste.

    Characters that a terminal would not show are escaped. The result has no line breaks, because a batch system could
    read a second line of a script as a directive.
    """
    text = no_option(text) if isinstance(text, Path) else text
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def argument(name: str) -> str:
    """Quote a name as an argument of a command. "--" ends the flags, so that one such as -x is none."""
    return f"{'-- ' if name.startswith('-') else ''}{quoted(name)}"


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character == "\n":
        return "\\n"
    return character if character.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def without_secrets(text: str, *, word: bool = False) -> str:
    """Return a text without the passwords and queries of the web addresses in it.

    The addresses end at a space, or at punctuation before it. A `word`, such as an argument of a command, is an address
    to its end.
    """
    end = "\0" if word else r"\s"
    # `Path` makes one slash of the two. A password can contain an @, but no slash.
    text = re.sub(rf"(https?:/+)[^/?{end}]*@", r"\1", text, flags=re.IGNORECASE)
    # The query is optional, so that the time is linear.
    pattern = re.compile(rf"(https?:/+[^?{end}]*)(\?[^{end}]*)?", re.IGNORECASE)
    return pattern.sub(lambda found: found[1] + ("" if word else _punctuation(found[2] or "")), text)


def _punctuation(text: str) -> str:
    return text[len(text.rstrip("]:;,.)'\"")) :]
