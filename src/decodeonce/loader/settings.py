"""The settings of a Loader and their checks."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from inspect import Signature, signature
from typing import Any, Concatenate, Literal, ParamSpec, SupportsIndex, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from decodeonce.host import usable_cores
from decodeonce.launch import Rank, check_rank, find_rank
from decodeonce.loader.batch import Transform
from decodeonce.store import Store

Shuffle = Literal["full", "window", "none"]
PartitionKind = Literal["global", "range"]
Tail = Literal["drop", "pad", "keep"]
ReaderName = Literal["auto", "pread", "mmap"]
# ArrayLike would fill three lines of help(Loader).
RowNumbers = Sequence[int] | NDArray[Any] | torch.Tensor
StoreLike = str | os.PathLike[str] | Store

P = ParamSpec("P")
Method = Callable[..., None]

# In our measurements, two threads copied as fast as two cores can. A rank should use only a few cores for loading.
MOST_THREADS = 4

CHOICES: dict[str, tuple[str | None, ...]] = {
    "shuffle": get_args(Shuffle),
    "partition": get_args(PartitionKind),
    "tail": get_args(Tail),
    "reader": get_args(ReaderName),
    "cache": (None, "device"),
}


@dataclass(frozen=True)
class Settings:
    """The parameters of a Loader; see its docstring.

    Raises:
        ValueError: If a parameter is not valid, or only one of rank and world_size is given.
    """

    store: StoreLike
    _: KW_ONLY
    batch_size: int
    rows: RowNumbers | None = None
    device: str | torch.device = "cpu"
    shuffle: Shuffle = "full"
    partition: PartitionKind = "global"
    seed: int = 0
    rank: int | None = None
    world_size: int | None = None
    tail: Tail = "drop"
    prefetch: int = 3
    threads: int | None = None
    reader: ReaderName = "auto"
    transform: Transform | None = None
    cache: Literal["device"] | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")
        for name, least in {"batch_size": 1, "prefetch": 1, "threads": 1, "seed": None}.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value, least))
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(f"rank is {self.rank!r} and world_size {self.world_size!r}, expected both or neither")
        if self.rank is not None and self.world_size is not None:
            for name in ("rank", "world_size"):
                object.__setattr__(self, name, whole(name, getattr(self, name)))
            check_rank(self.rank, self.world_size)

    def copying_threads(self) -> int:
        """The number of threads that copy rows."""
        return min(MOST_THREADS, usable_cores()) if self.threads is None else self.threads

    def find_rank(self) -> Rank:
        """The rank that was passed, or the one from torch.distributed or the launcher."""
        if self.rank is None or self.world_size is None:
            return find_rank()
        return Rank(self.rank, self.world_size, "given")


def whole(name: str, value: object, least: int | None = None) -> int:
    """Return a whole number of any type as an int. ValueError unless it is one, of `least` or more if that is given."""
    bound = "" if least is None else f" of {least} or more"
    error = ValueError(f"{name} is {value!r}, expected a whole number{bound}")
    if isinstance(value, bool | np.bool_) or not isinstance(value, SupportsIndex):
        raise error
    try:
        number = operator.index(value)
    except TypeError:  # an array or tensor that is not a single whole number
        raise error from None
    if least is not None and number < least:
        raise error
    return number


def with_parameters_of(settings: Callable[P, object]) -> Callable[[Method], Callable[Concatenate[Any, P], None]]:
    """Show the parameters of `settings` as those of a method, for type checkers and help()."""

    def declare(method: Method) -> Callable[Concatenate[Any, P], None]:
        own = signature(method).parameters["self"]
        vars(method)["__signature__"] = Signature([own, *signature(settings, eval_str=True).parameters.values()])
        return method

    return declare
