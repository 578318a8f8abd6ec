"""The settings of a Loader and their checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from inspect import Signature, signature
from typing import Any, Concatenate, Literal, ParamSpec, get_args

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
        check_whole(1, batch_size=self.batch_size, prefetch=self.prefetch, threads=self.copying_threads())
        check_whole(None, seed=self.seed)
        if (self.rank is None) != (self.world_size is None):
            raise ValueError(f"rank is {self.rank!r} and world_size {self.world_size!r}, expected both or neither")
        if self.rank is not None and self.world_size is not None:
            check_whole(None, rank=self.rank, world_size=self.world_size)
            check_rank(self.rank, self.world_size)

    def copying_threads(self) -> int:
        """The number of threads that copy rows."""
        return min(MOST_THREADS, usable_cores()) if self.threads is None else self.threads

    def find_rank(self) -> Rank:
        """The rank that was passed, or the one from torch.distributed or the launcher."""
        if self.rank is None or self.world_size is None:
            return find_rank()
        return Rank(self.rank, self.world_size, "given")


def check_whole(least: int | None, /, **values: object) -> None:
    """Raise ValueError unless all values are whole numbers and, if `least` is given, at least `least`."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
            bound = "" if least is None else f" of {least} or more"
            raise ValueError(f"{name} is {value!r}, expected a whole number{bound}")


def with_parameters_of(settings: Callable[P, object]) -> Callable[[Method], Callable[Concatenate[Any, P], None]]:
    """Show the parameters of `settings` as those of a method, for type checkers and help()."""

    def declare(method: Method) -> Callable[Concatenate[Any, P], None]:
        own = signature(method).parameters["self"]
        vars(method)["__signature__"] = Signature([own, *signature(settings, eval_str=True).parameters.values()])
        return method

    return declare
