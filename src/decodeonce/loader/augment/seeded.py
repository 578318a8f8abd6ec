"""Seed the random numbers of code that draws from the global generators of torch, NumPy and Python, in one thread.

Setting and restoring the global generators would not do: the user's threads draw from them at the same time. They would
change the images, and the images would change what they draw.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Random functions that accept no generator in torch 2.6, and the methods that do the same with one.
aten = torch.ops.aten
LIKE = {aten.rand_like: "uniform_", aten.randn_like: "normal_", aten.randint_like: "random_"}


class _Own(threading.local):
    """The generators that replace the global ones in this thread."""

    python: random.Random | None = None
    numpy: np.random.RandomState | None = None


_own = _Own()
_lock, _threads = threading.Lock(), 0


class Seeded(TorchDispatchMode):
    """While it is entered, this thread draws from generators of its own. Call `seed` before each use of them.

    torch calls a TorchDispatchMode only in the thread that entered it. It adds 10 us to a call of torch.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = 0
        self._python, self._numpy = random.Random(0), np.random.RandomState(0)
        self._torch: dict[torch.device, torch.Generator] = {}

    def seed(self, seed: int) -> None:
        """Seed all generators with 64 bits."""
        self._seed = seed % 2**64
        self._python.seed(self._seed)
        self._numpy.seed([self._seed % 2**32, self._seed >> 32])
        for generator in self._torch.values():
            generator.manual_seed(self._seed)

    def __enter__(self) -> Any:
        _follow_threads(1)
        _own.python, _own.numpy = self._python, self._numpy
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        _own.python = _own.numpy = None
        _follow_threads(-1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (fill := LIKE.get(func.overloadpacket)) and kwargs.get("generator") is None:
            tensor = torch.empty_like(args[0], **{name: given for name, given in kwargs.items() if name != "generator"})
            return getattr(tensor, fill)(*args[1:], generator=self._generator(tensor.device))
        if kwargs.get("generator") is None and (drawing := _with_generator(func)) is not None:
            device = next((a.device for a in args if isinstance(a, Tensor)), None) or kwargs.get("device") or "cpu"
            func, kwargs = drawing, {**kwargs, "generator": self._generator(torch.device(device))}
        return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._torch:
            self._torch[device] = torch.Generator(device)
            self._torch[device].manual_seed(self._seed)
        return self._torch[device]


@cache
def _with_generator(func: Any) -> Any:
    """The form of a random operator of torch that accepts a generator; None if there is none, or it is not random."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    name = "generator" if func._overloadname == "default" else f"{func._overloadname}_generator"
    return getattr(func.overloadpacket, name, None)


def _follow_threads(change: int) -> None:
    """Count the threads that draw from generators of their own, and replace the functions of both modules meanwhile.

    `random` and `numpy.random` offer the methods of a hidden generator as functions. There is no other way to replace
    it in a thread. In other threads, the functions do what they did before.
    """
    global _threads
    with _lock:
        before, _threads = _threads, _threads + change
        if 0 in (before, _threads):
            for module, name, function, by_thread in _functions():
                old, new = (function, by_thread) if _threads else (by_thread, function)
                if getattr(module, name) is old:
                    setattr(module, name, new)


@cache
def _functions() -> list[tuple[ModuleType, str, Callable[..., Any], Callable[..., Any]]]:
    """The functions of both modules: module, name, the function, and what replaces it."""
    return [
        (module, name, function, _by_thread(module, name, function, kind))
        for module, hidden, kind in ((random, random._inst, "python"), (np.random, np.random.mtrand._rand, "numpy"))
        for name, function in list(vars(module).items())
        if getattr(function, "__self__", None) is hidden
    ]


def _forget_threads() -> None:
    """Restore the functions in a forked process, in which none of these threads exists."""
    global _lock, _threads
    _lock = threading.Lock()
    if _threads:
        _threads = 1
        _follow_threads(-1)


os.register_at_fork(after_in_child=_forget_threads)


def _by_thread(module: ModuleType, name: str, function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @wraps(function)
    def draw(*args: Any, **kwargs: Any) -> Any:
        own = getattr(_own, kind)
        return (function if own is None else getattr(own, name))(*args, **kwargs)

    draw.__module__, draw.__qualname__ = module.__name__, name  # so that it can be pickled
    return draw
