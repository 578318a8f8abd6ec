"""`Loader(weights=...)`: rows are drawn with replacement, by positions that no rank, batch size or resume changes."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from decodeonce import Batch, Loader
from decodeonce.augment import Augment, RandomFlip, RandomResizedCrop
from decodeonce.loader.order import AliasTable, WeightedOrder, derive_key
from decodeonce.loader.partition import StepRows, Tail, make_partition, plan_steps
from tests.conftest import COUNT
from tests.stores import make_store

# Most are 0 or ordinary numbers; some differ by many orders of magnitude, or sum to more than a float64 can hold.
weight_lists = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 1), st.sampled_from([1.0, 3.0, 1e-300, 5e-324, 1e200, 1.7e308])), min_size=1
).filter(any)
keys = st.integers(0, 2**64 - 1)
worlds, batches = st.integers(1, 7), st.integers(1, 40)

LABELS = np.repeat([0, 1, 2], [42, 15, 3])


@pytest.fixture(scope="module")
def unbalanced(images: NDArray[np.uint8], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 42, 15 and 3 rows of three classes."""
    return make_store(tmp_path_factory.mktemp("stores") / "unbalanced", images, LABELS, shard_rows=25)


def weights_of(count: int, seed: int = 0) -> NDArray[np.float64]:
    """Weights from 0.1 to 4, and a tenth of them 0."""
    random = np.random.default_rng(seed)
    return random.uniform(0.1, 4, count) * (random.random(count) > 0.1)


def probabilities(table: AliasTable) -> NDArray[np.float64]:
    """The probability of each number, from the columns of the table."""
    units = table.kept.copy()
    np.add.at(units, table.alias, table.height - table.kept)
    shares: NDArray[np.float64] = units / units.sum()
    return shares


@given(weight_lists)
@example((weights_of(300_000) ** 9).tolist())
def test_table_has_the_probabilities_of_the_weights(weights: list[float]) -> None:
    table = AliasTable(np.array(weights))
    assert ((table.kept >= 0) & (table.kept <= table.height)).all()
    scaled = np.array(weights) / max(weights)
    assert np.abs(probabilities(table) - scaled / scaled.sum()).max() < 1e-14
    assert not probabilities(table)[scaled == 0].any()


def test_draws_do_not_change_between_releases() -> None:
    """A checkpoint from one release must resume with the same draws, and with the same digest, in the next release."""
    small = AliasTable(np.array([0, 1, 2, 3, 0.5]))
    large = AliasTable(1 / (1 + np.arange(1281167) % 1000))
    for table, rows in [(small, SMALL), (large, LARGE)]:
        assert WeightedOrder(table, derive_key(0, 0)).at(np.arange(len(rows))).tolist() == rows
    assert [small.digest, large.digest] == DIGESTS


SMALL = [3, 4, 3, 1, 3, 2, 4, 3]
LARGE = [690033, 372566, 194081, 924002, 851003, 1277000]
DIGESTS = ["0bbc5cb51a0a076e", "a27f1e1b9cfd2f93"]


def deviation(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """Chi-square statistic in standard deviations from its mean: near 0 if the counts are as expected."""
    counts, expected = counts[expected > 0], expected[expected > 0]
    assert expected.min() > 5
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def rank_plan(
    table: AliasTable, batch_size: int, rank: int, world: int, tail: Tail = "keep", consumed: int = 0, epoch: int = 0
) -> list[StepRows]:
    """The steps of one rank after the first `consumed` draws."""
    partition = make_partition("global", range(table.count), batch_size, rank, world, tail)
    return list(plan_steps(WeightedOrder(table, derive_key(7, epoch)), partition, consumed, epoch, 0))


def drawn(plans: list[list[StepRows]]) -> dict[int, int]:
    """The valid row at each position that the ranks draw; each position is drawn once."""
    pairs: list[tuple[int, int]] = []
    for step in (step for plan in plans for step in plan):
        assert step.positions is not None
        assert (np.diff(step.rows[: step.valid]) >= 0).all()
        pairs += zip(step.positions[: step.valid].tolist(), step.rows[: step.valid].tolist(), strict=True)
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_draws_over_epochs_ranks_and_resumes_have_the_weights() -> None:
    """Each epoch begins with one number of ranks and resumes with another one, at a random step."""
    count, epochs, random = 700, 600, np.random.default_rng(1)
    weights = weights_of(count)
    table, counts = AliasTable(weights), np.zeros(count, np.int64)
    for epoch in range(epochs):
        (first, second), batch_size = random.integers(1, 5, 2).tolist(), int(random.integers(1, 40))
        before = [rank_plan(table, batch_size, rank, first, epoch=epoch) for rank in range(first)]
        done = int(random.integers(0, len(before[0])))
        consumed = done * batch_size * first
        after = [rank_plan(table, 32, rank, second, consumed=consumed, epoch=epoch) for rank in range(second)]
        rows = {**drawn([plan[:done] for plan in before]), **drawn(after)}
        assert sorted(rows) == list(range(count))
        counts += np.bincount(list(rows.values()), minlength=count)
    expected = weights / weights.sum() * count * epochs
    assert abs(deviation(counts, expected)) < 4
    assert not counts[weights == 0].any()


@given(weight_lists, worlds, batches, st.sampled_from(["drop", "keep", "pad"]), st.data())
def test_ranks_draw_the_same_sequence_in_any_number(
    weights: list[float], world_size: int, batch_size: int, tail: Tail, data: st.DataObject
) -> None:
    if tail == "drop":
        world_size, batch_size = min(world_size, len(weights)), 1
    table = AliasTable(np.array(weights))
    whole = WeightedOrder(table, derive_key(7, 0)).at(np.arange(len(weights))).tolist()
    plans = [rank_plan(table, batch_size, rank, world_size, tail=tail) for rank in range(world_size)]
    assert len({len(plan) for plan in plans}) == 1
    last = len(weights) // world_size * world_size if tail == "drop" else len(weights)
    assert drawn(plans) == dict(enumerate(whole[:last]))
    done = data.draw(st.integers(0, len(plans[0]) - 1))
    other, consumed = data.draw(worlds), done * batch_size * world_size
    rest = [rank_plan(table, 5, rank, other, consumed=consumed) for rank in range(other)]
    assert drawn(rest) == dict(enumerate(whole[consumed:], consumed))


def test_padding_repeats_the_first_draws() -> None:
    table = AliasTable(weights_of(10))
    (step,) = rank_plan(table, 14, 0, 1, tail="pad")
    rows = WeightedOrder(table, derive_key(7, 0)).at(np.arange(10))
    assert step.positions is not None
    assert step.rows.tolist() == [*np.sort(rows).tolist(), *np.sort(rows[:4]).tolist()]
    assert sorted(step.positions[10:].tolist()) == [0, 1, 2, 3]
    assert rows[step.positions].tolist() == step.rows.tolist()


Drawn = dict[tuple[int, int], tuple[int, int, bytes]]


def contents(batches: list[Batch]) -> Drawn:
    """The row, label and pixels of each draw, by epoch and position."""
    found = {}
    for batch in batches:
        assert batch.positions is not None
        facts = zip(batch.positions.tolist(), batch.rows.tolist(), batch.labels.tolist(), batch.images, strict=True)
        for position, row, label, image in list(facts)[: batch.valid]:
            found[batch.epoch, position] = (row, label, image.numpy().tobytes())
    return found


def loader_of(store: Path, **settings: Any) -> Loader:
    augment = Augment(RandomResizedCrop(5), RandomFlip(), seed=1)
    return Loader(store, **{"batch_size": 4, "seed": 5, "tail": "keep", "transform": augment, **settings})


def test_stop_at_every_step_and_resume_on_another_number_of_ranks(unbalanced: Path) -> None:
    """Row by row, labels and augmented pixels equal those of a run without a stop."""
    with loader_of(unbalanced, weights="balanced") as loader:
        expected = contents([*loader, *loader])
    assert sorted(expected) == [(epoch, position) for epoch in range(2) for position in range(COUNT)]
    for done in range(9):
        found: Drawn = {}
        for rank in range(2):
            with loader_of(unbalanced, rank=rank, world_size=2, weights="balanced") as loader:
                found |= contents([batch for _, batch in zip(range(done), loader, strict=False)])
                if done:
                    state = loader.state_dict()
        for rank in range(3):
            with loader_of(unbalanced, rank=rank, world_size=3, batch_size=5, weights="balanced") as loader:
                if done:
                    loader.load_state_dict(state)
                while loader.epoch < 2:
                    found |= contents(list(loader))
        assert found == expected


@pytest.mark.parametrize("weights", ["balanced", np.arange(1.0, COUNT + 1)])
def test_subset_draws_its_rows_with_their_weights(unbalanced: Path, weights: Any) -> None:
    """Of class 0, half of the rows are loaded. The weights are those of all rows of the store."""
    rows = np.setdiff1d(np.arange(COUNT), np.arange(0, 42, 2))
    with loader_of(unbalanced, weights=weights, rows=rows[::-1], batch_size=13, transform=None) as loader:
        found = [row for _ in range(150) for batch in loader for row in batch.rows.tolist()]
    expected = np.zeros(COUNT)
    expected[rows] = 1 / np.bincount(LABELS[rows])[LABELS[rows]] if isinstance(weights, str) else weights[rows]
    counts = np.bincount(found, minlength=COUNT)
    assert not counts[expected == 0].any()
    assert abs(deviation(counts, expected / expected.sum() * len(found))) < 4


def test_any_type_of_numbers_and_any_sum_give_the_same_draws(unbalanced: Path) -> None:
    weights = np.arange(COUNT) % 4.0
    with loader_of(unbalanced, weights=weights * 2) as loader:
        state, expected = loader.state_dict(), contents(list(loader))
    kinds: list[Any] = [weights.tolist(), torch.tensor(weights), weights.astype(np.float32), weights.astype(np.uint8)]
    for kind in kinds:
        with loader_of(unbalanced, weights=kind) as loader:
            loader.load_state_dict(state)
            assert contents(list(loader)) == expected


def test_mask_draws_its_row_with_another_augmentation_each_time(unbalanced: Path) -> None:
    with loader_of(unbalanced, weights=np.arange(COUNT) == 7) as loader:
        found = contents([*loader, *loader])
    assert {row for row, _, _ in found.values()} == {7}
    assert len({pixels for _, _, pixels in found.values()}) > COUNT


def test_state_of_different_weights_is_refused(unbalanced: Path) -> None:
    """The last two tables have the same columns, but other rows fill them up."""
    tail = [1.0] * (COUNT - 3)
    choices: list[Any] = [None, "balanced", [0.5, 1.5, 1, *tail], [0.5, 1, 1.5, *tail]]
    loaders = [loader_of(unbalanced, weights=weights) for weights in choices]
    for loader, other in itertools.product(loaders, loaders):
        state = other.state_dict()
        if loader is other:
            loader.load_state_dict(state)
            continue
        with pytest.raises(ValueError, match=f"a different Loader: shuffle '{state['shuffle']}', here '"):
            loader.load_state_dict(state)


def test_invalid_weights_are_refused(unbalanced: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"weights": [1.0] * 59}, r"weights has shape \(59,\) of float64, expected 60 numbers, one for each row of"),
        ({"weights": [1.0] * 20, "rows": range(20)}, r"weights has shape \(20,\) of float64, expected 60 numbers"),
        ({"weights": [[1.0]] * 60}, r"weights has shape \(60, 1\) of float64"),
        ({"weights": "equal"}, r'weights has shape \(\) of <U5, expected 60 numbers, one .*, or "balanced"'),
        ({"weights": [1.0] * 59 + [-0.5]}, r"weights\[59\] is -0.5, expected a finite number of 0 or more"),
        ({"weights": [1.0, float("nan")] * 30}, r"weights\[1\] is nan, expected a finite number"),
        ({"weights": [0] * 20 + [1] * 40, "rows": range(20)}, "weights has only zeros for the rows to load"),
        ({"weights": "balanced", "rows": range(20)}, 'weights="balanced" needs rows of several classes, but all are'),
        ({"weights": "balanced", "shuffle": "window"}, "needs shuffle=\"full\", .* got shuffle='window', partition='g"),
        ({"weights": "balanced", "shuffle": "none"}, "weights= draws from all rows: it needs .* got shuffle='none'"),
        ({"weights": "balanced", "partition": "range"}, "it needs .* got shuffle='full', partition='range'"),
    ]
    for settings, message in wrong:
        with pytest.raises(ValueError, match=message):
            loader_of(unbalanced, **settings)


def test_weights_can_change_between_epochs(store: Path) -> None:
    def rows(loader: Loader) -> list[list[int]]:
        return [batch.rows.tolist() for batch in loader]

    first, second = np.ones(COUNT), np.arange(COUNT)
    with Loader(store, batch_size=8, weights=first) as loader, Loader(store, batch_size=8, weights=second) as other:
        rows(loader)
        rows(other)
        loader.set_weights(second)
        assert loader.epoch == 1
        assert loader.state_dict() == other.state_dict()
        assert rows(loader) == rows(other)
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="epoch 2 is running"):
            loader.set_weights(first)
        del batches
    with Loader(store, batch_size=8) as loader, pytest.raises(ValueError, match="created without weights="):
        loader.set_weights(first)
