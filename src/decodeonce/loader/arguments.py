"""Convert arguments that several classes of this package have."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from decodeonce.store import Store, open_store

StoreLike = str | os.PathLike[str] | Store
Params = ParamSpec("Params")
Init = Callable[Params, None]

_NO_WORKERS = "nothing: a Loader has threads instead of worker processes"
# The arguments of torch's DataLoader that a Loader does not have, and what to pass instead.
DATA_LOADER_WORDS = {
    "dataset": "store",
    "sampler": "weights to draw rows by weight, rows for a subset, or shuffle",
    "batch_sampler": "batch_size and shuffle, or rows for a subset",
    "num_workers": "threads",
    "collate_fn": "transform, a function from a Batch to a Batch",
    "pin_memory": 'device="cuda", which copies from pinned memory',
    "pin_memory_device": "device",
    "drop_last": 'tail="drop" or "keep"',
    "timeout": _NO_WORKERS,
    "worker_init_fn": _NO_WORKERS,
    "multiprocessing_context": _NO_WORKERS,
    "persistent_workers": _NO_WORKERS,
    "generator": "seed",
    "prefetch_factor": "prefetch",
    "in_order": "nothing: batches are always in order",
}


def refuse_arguments(positional: str, named: Mapping[str, str]) -> Callable[[Init[Params]], Init[Params]]:
    """Decorate an `__init__` so that wrong arguments raise TypeError. Type checkers and help() still see its own ones.

    Args:
        positional: Advice for a second positional argument, in which {} is it.
        named: The arguments of torch's DataLoader, and what to pass instead.
    """

    def decorate(init: Init[Params]) -> Init[Params]:
        @wraps(init)
        def checked(*args: Params.args, **kwargs: Params.kwargs) -> None:
            if len(args) > 2 or not named.keys().isdisjoint(kwargs):  # self and one more
                raise _wrong_arguments(args, kwargs, positional, named)
            init(*args, **kwargs)

        return checked

    return decorate


def _wrong_arguments(
    args: Sequence[object], words: Iterable[str], positional: str, named: Mapping[str, str]
) -> TypeError:
    name = type(args[0]).__name__
    if len(args) > 2:
        return TypeError(f"{name} takes one argument without a name; {positional.format(args[2])}")
    found = [f"{word}: pass {named[word]}" for word in words if word in named]
    return TypeError(f"{name} has no such arguments of torch's DataLoader; {'; '.join(found)}")


def as_store(store: StoreLike) -> Store:
    """Return an open store."""
    return store if isinstance(store, Store) else open_store(store)


def check_probability(p: float) -> None:
    """Raise ValueError unless `p` is a probability."""
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p!r}, expected a probability, 0 to 1")


def whole(name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> int:
    """Return a whole number of any type as an int. ValueError unless it is one, from `least` to `most` if given."""
    number = None
    with suppress(TypeError):  # not a number, or an array or tensor that is not a single whole number
        number = operator.index(value)
    if number is None or isinstance(value, bool | np.bool_) or not least <= number <= most:
        bounds = f" from {least} to {most}" if most < math.inf else f" of {least} or more" if least > -math.inf else ""
        raise ValueError(f"{name} is {value!r}, expected a whole number{bounds}")
    return number
