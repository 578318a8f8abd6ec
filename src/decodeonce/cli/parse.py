"""Parse values of the command line. A value that cannot be parsed is a usage error (exit code 2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer

LARGEST = 2**63 - 1
LEAST = 4096  # bytes; a smaller size without a unit is refused
UNITS = {"": 1, "B": 1, **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)}}
UNITS |= {f"{p}IB": 1024**i for i, p in enumerate("KMGT", 1)}


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
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([a-z]*)", text.strip().lower())
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not 1 <= (size := int(float(match[1]) * unit)) <= LARGEST:
        raise typer.BadParameter(f"{flag} {text}: expected a size such as 32GiB, 10GB or 500MiB{_hint(text)}")
    if match[2] == "" and size < LEAST:
        raise typer.BadParameter(f"{flag} {text}: {size} bytes cannot hold an image; did you mean {match[1]}GiB?")
    return size


def _hint(text: str) -> str:
    """Suggest a unit for texts such as 32G or 32Gi."""
    match = re.fullmatch(r"([0-9.]+)([kmgt])i?", text.strip().lower())
    return f"; did you mean {match[1]}{match[2].upper()}iB?" if match else ""


def shuffle_seed(text: str) -> int | None:
    """Return a seed, or None for "none"."""
    if text.strip().lower() == "none":
        return None
    if not re.fullmatch("[0-9]{1,19}", text.strip()) or int(text) > LARGEST:
        raise typer.BadParameter(f"--shuffle-seed {text}: expected an integer up to {LARGEST}, or none")
    return int(text)
