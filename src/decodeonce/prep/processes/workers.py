"""Run several worker processes; each takes the next order when it is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from decodeonce.prep.processes.child import Child, ChildDied, wait_for


def run_workers(module: str, count: int, task: object, orders: Iterator[object], take: Callable[[Any], None]) -> None:
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
    try:
        for _ in range(count):
            children.append(Child(module))
            children[-1].send(task)
        running = set(children)
        while running:
            for child in wait_for(running):
                messages = child.receive()
                if messages is None:
                    running.remove(child)
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
