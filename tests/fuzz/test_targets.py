"""Every fuzz target accepts its seeds, the inputs that `make fuzz` starts from."""

import pytest

from tests.fuzz import TARGETS, load


@pytest.mark.parametrize("name", TARGETS)
def test_target_accepts_its_seeds(name: str) -> None:
    target = load(name)
    seeds = list(target.seeds())
    assert seeds
    for seed in seeds:
        target.TestOneInput(seed)
    for data in (b"", b"\0", b"\xff" * 64):
        target.TestOneInput(data)
