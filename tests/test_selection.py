"""The choice of tests that conftest.py makes."""

from collections import Counter

from tests.conftest import SAMPLED, group_of_test, sample


def test_sample_repeats_with_its_seed_and_has_some_tests_of_each_group() -> None:
    tests = [
        f"tests/{folder}/test_{file}.py::test_{n}"
        for folder in ("a", "netfs")
        for file in "xy"
        for n in range(2 * SAMPLED)
    ]
    assert sample(tests, "1") == sample(tests, "1") != sample(tests, "2")
    assert set(sample(tests, "1")) < set(tests)
    assert [*Counter(map(group_of_test, sample(tests, "1"))).values()] == [SAMPLED] * 3
