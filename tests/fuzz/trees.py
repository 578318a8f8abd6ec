"""Mutations of JSON. The result is valid JSON, so that the code after the parser is reached."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz import Mutate

UNUSUAL: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 7, 255, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308),
    *("", ".", "..", "/etc/passwd", "../store.json", "store.json", "stage.json", "\udc80", "\u202e", "a\nb", "x" * 300),
    *("<f1", "<b8", "|u1", "<i8", "labels.npy", [], {}, [[]], [0] * 70, [2**62, 4, 0]),
)
NAMES = [value for value in UNUSUAL if isinstance(value, str)]
Item = tuple[Any, Any]  # a list or dictionary, and one of its indices or keys


def mutate_tree(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change values of JSON. Once in eight times, or if `data` are not JSON, let libFuzzer change the bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return mutate(data, size)
    items = _items(tree)
    if not items or random.random() < 0.125:
        return mutate(data, size)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(random, mutate, *random.choice(items))
    return json.dumps(tree).encode()[:size]


def reencode(data: bytes, write: Callable[[Any], bytes]) -> bytes:
    """Parse JSON and encode it with `write`. Return `data` unchanged if that fails."""
    try:
        return write(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return data


def _items(tree: Any) -> list[Item]:
    """Return every item of a tree; an item precedes those inside it."""
    items: list[Item] = []
    values = [tree]
    for value in values:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        items += [(value, key) for key in keys]
        values += [value[key] for key in keys]
    return items


def _change(random: Random, mutate: Mutate, parent: Any, key: Any) -> None:
    if (key not in parent) if isinstance(parent, dict) else key >= len(parent):
        return  # an earlier change removed the item
    value, kind = parent[key], random.randrange(8)
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, list):
        parent.insert(key, json.loads(json.dumps(value)))
    elif kind == 2 and isinstance(parent, dict):
        parent[random.choice([*parent, *NAMES])] = json.loads(json.dumps(value))
    elif kind <= 4 and isinstance(value, str):
        parent[key] = mutate(value.encode("latin-1", "replace"), len(value) + 16).decode("latin-1")
    elif kind <= 4 and isinstance(value, int):
        parent[key] = value + random.choice((-1, 1, 8, -value, value, 1 << random.randrange(64)))
    else:
        same_type = [other for other in UNUSUAL if type(other) is type(value)] if random.randrange(4) else UNUSUAL
        parent[key] = json.loads(json.dumps(random.choice(same_type or UNUSUAL)))
