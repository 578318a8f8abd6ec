"""Fuzz targets: bytes that nobody chose, through the readers of this project. `make fuzz` runs them (see run.py).

Each module of TARGETS has `TestOneInput(data)`, which must return for any bytes, and `seeds()`, inputs to begin with.
A module may have `mutate`, which changes an input in a way that gets past its first check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from random import Random
from typing import Protocol, cast

Mutate = Callable[[bytes, int], bytes]  # bytes, and how many there may be at most, to other bytes

TARGETS = (
    "manifest",
    "store",
    "table",
    "journal",
    "plan",
    "tar",
    "gzip",
    "zip",
    "imagenet",
    "annotation",
    "lists",
    "class_lists",
    "image",
    "parquet",
)


class Target(Protocol):
    """A module of TARGETS."""

    def seeds(self) -> Iterable[bytes]: ...

    def TestOneInput(self, data: bytes) -> None: ...


def load(name: str) -> Target:
    """The target of this name."""
    return cast(Target, import_module(f"tests.fuzz.{name}"))


def mutator_of(target: Target) -> Callable[[bytes, int, Random, Mutate], bytes] | None:
    """A target's own way to change an input, to at most so many bytes; None where bytes are changed as they come."""
    return getattr(target, "mutate", None)
