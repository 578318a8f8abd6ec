"""Parse values of the command line. A value that cannot be parsed is a usage error (exit code 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from decodeonce.store.layout import Paired

LARGEST = 2**63 - 1
LEAST = 4096  # bytes; a smaller size without a unit is refused


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError into a usage error."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def row_size(text: str) -> tuple[int, int]:
    """Return (height, width) for "256" or "192x256"."""
    match = re.fullmatch(r"([0-9]{1,6})(?:x([0-9]{1,6}))?", text.strip().lower())
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= height <= 16384 and 1 <= width <= 16384):
        raise typer.BadParameter(f"--size {text}: expected pixels, 1 to 16384, such as 256 or 192x256 (HxW)")
    return height, width


def byte_size(text: str, flag: str = "--shard-size") -> int:
    """Return the bytes of "32GiB", "1.5TB" or "65536". A few bytes without a unit are refused: the unit is missing."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?:([KMGT])(I?))?(B?)", text.strip().upper())
    number, prefix, binary, unit = match.groups() if match else ("0", "", "", "")
    size = int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix or " "))
    cut = prefix and not unit  # such as 32G or 32Gi
    if cut or not 1 <= size <= LARGEST:
        hint = f"; did you mean {number}{prefix}iB?" if cut else ""
        raise typer.BadParameter(f"{flag} {text}: expected a size such as 32GiB, 10GB or 500MiB{hint}")
    if size < LEAST and not unit:
        raise typer.BadParameter(f"{flag} {text}: {size} bytes cannot hold an image; did you mean {number}GiB?")
    return size


def paired(texts: list[str]) -> dict[str, str]:
    """Return the folders of "mask=masks" and "target:rgb=targets" by "mask" and "target:rgb"."""
    found = dict(text.split("=", 1) for text in texts if "=" in text)
    with usage_errors():
        names = {Paired.parse(name).name for name in found}
    if len(names) < len(texts) or not all(found.values()):
        raise typer.BadParameter(f"--paired {' '.join(texts)}: expected NAME=DIR, such as mask=masks, each name once")
    return found


def shuffle_seed(text: str) -> int | None:
    """Return a seed, or None for "none"."""
    if text.strip().lower() == "none":
        return None
    if not re.fullmatch("[0-9]{1,19}", text.strip()) or int(text) > LARGEST:
        raise typer.BadParameter(f"--shuffle-seed {text}: expected an integer up to {LARGEST}, or none")
    return int(text)
