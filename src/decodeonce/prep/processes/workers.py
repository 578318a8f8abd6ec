"""Run several worker processes; each takes the next order when it is free."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator
from typing import Any

from decodeonce.prep.processes.child import Child, ChildDied


def run_workers(module: str, count: int, task: Any, orders: Iterator[Any], take: Callable[[Any], None]) -> None:
    """Give orders to `count` processes that run `main` of a module. All messages must be JSON-serializable.

    However this ends, all processes are killed and reaped.

    Args:
        module: Its `main` opens a `Parent`, receives `task`, and iterates over `orders()`.
        count: Number of processes.
        task: The first message to each process.
        orders: The orders, in sequence.
        take: Called with each report of a process.

    Raises:
        DecodeonceError, OSError: What a process raised.
        ChildDied: A process died.
    """
    children: list[Child] = []
    with selectors.DefaultSelector() as selector:
        try:
            for _ in range(count):
                children.append(Child(module))
                selector.register(children[-1].socket, selectors.EVENT_READ, children[-1])
                children[-1].send(task)
            while selector.get_map():
                for key, _ in selector.select():
                    child: Child = key.data
                    messages = child.receive()
                    if messages is None:
                        selector.unregister(key.fileobj)
                        if status := child.wait():
                            raise ChildDied(status)
                    for message in messages or ():
                        if "report" in message:
                            take(message["report"])
                        else:
                            child.send(next(orders, None))
        finally:
            for child in children:
                child.end()
