"""Changes to a tree of JSON values: they keep it JSON, so that what comes behind the parser is reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz import Mutate

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2,
    7,
    255,
    2**31,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**400,
    0.5,
    -0.0,
    1e308,
    "",
    ".",
    "..",
    "/etc/passwd",
    "../store.json",
    "store.json",
    "stage.json",
    "\udc80",
    "\u202e",
    "a\nb",
    "x" * 300,
    "<f1",
    "<b8",
    "|u1",
    "<i8",
    "labels.npy",
    [],
    {},
    [[]],
    [0] * 70,
    [2**62, 4, 0],
)
NAMES = [value for value in ODD if isinstance(value, str)]
Place = tuple[Any, Any]  # a list or dictionary, and an index or key of it


def mutate_tree(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Other bytes that are JSON where `data` are; one time in eight, or where they are not, as libFuzzer has it."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return mutate(data, size)
    places = list(_places(tree))
    if not places or random.random() < 0.125:
        return mutate(data, size)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(random, mutate, *random.choice(places))
    return json.dumps(tree).encode()[:size]


def rewritten(data: bytes, write: Callable[[Any], bytes]) -> bytes:
    """What `write` makes of the JSON in `data`; the data where they are none, or none that can be written."""
    try:
        return write(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return data


def _places(tree: Any) -> list[Place]:
    """Every place of a tree, above its own parts."""
    found: list[Place] = []
    below = [tree]
    for value in below:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        found += [(value, key) for key in keys]
        below += [value[key] for key in keys]
    return found


def _change(random: Random, mutate: Mutate, holder: Any, key: Any) -> None:
    if (key not in holder) if isinstance(holder, dict) else key >= len(holder):
        return  # an earlier change took it away
    value, kind = holder[key], random.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, json.loads(json.dumps(value)))
    elif kind == 2 and isinstance(holder, dict):
        holder[random.choice([*holder, *NAMES])] = json.loads(json.dumps(value))
    elif kind <= 4 and isinstance(value, str):
        holder[key] = mutate(value.encode("latin-1", "replace"), len(value) + 16).decode("latin-1")
    elif kind <= 4 and isinstance(value, int):
        holder[key] = value + random.choice((-1, 1, 8, -value, value, 1 << random.randrange(64)))
    else:
        alike = [other for other in ODD if type(other) is type(value)] if random.randrange(4) else ODD
        holder[key] = json.loads(json.dumps(random.choice(alike or ODD)))
