"""Every fuzz target accepts its seeds, the inputs that `make fuzz` starts from."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz import TARGETS, load, mutator_of


@pytest.mark.parametrize("name", TARGETS)
def test_target_accepts_its_seeds(name: str) -> None:
    target = load(name)
    seeds = list(target.seeds())
    assert seeds
    for seed in seeds:
        target.TestOneInput(seed)
    for data in (b"", b"\0", b"\xff" * 64):
        target.TestOneInput(data)


@pytest.mark.parametrize("name", [name for name in TARGETS if mutator_of(load(name))])
def test_mutator_respects_the_maximum_size(name: str) -> None:
    target = load(name)
    mutate = mutator_of(target)
    assert mutate is not None
    for seed in target.seeds():
        for number in range(8):
            size = len(seed) + 8
            assert len(mutate(seed, size, Random(number), lambda data, size: data[::-1][:size])) <= size
