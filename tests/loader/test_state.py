"""Epochs, and the state of a Loader within them."""

import json
import weakref
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decodeonce import Loader, open_store
from tests.conftest import COUNT
from tests.stores import make_store, random_images


def loader_of(store: Path, **settings: Any) -> Loader:
    return Loader(store, **{"batch_size": 7, "seed": 5, "tail": "keep", **settings})


def rows_of(batches: Any) -> list[list[int]]:
    return [batch.rows[: batch.valid].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def test_each_epoch_has_its_own_order(store: Path) -> None:
    with loader_of(store) as loader, loader_of(store) as same, loader_of(store, seed=6) as other:
        first, second = rows_of(loader), rows_of(loader)
        assert len(first) == len(loader) == 9
        assert sorted(flat(first)) == sorted(flat(second)) == list(range(COUNT))
        assert first != second
        assert [rows_of(same), rows_of(same)] == [first, second]
        assert rows_of(other) != first


def test_ranges_of_equal_size_are_shuffled_differently(store: Path) -> None:
    settings: dict[str, Any] = {"partition": "range", "world_size": 2, "batch_size": 1}
    with loader_of(store, rank=0, **settings) as first, loader_of(store, rank=1, **settings) as second:
        assert [row % 30 for row in flat(rows_of(first))] != [row % 30 for row in flat(rows_of(second))]


def test_state_ignores_prefetched_batches(store: Path) -> None:
    with loader_of(store, prefetch=4) as loader:
        states = [loader.state_dict()]
        for _ in loader:
            states.append(loader.state_dict())
    assert [(s["epoch"], s["rows_consumed"]) for s in states] == [*((0, 7 * k) for k in range(9)), (1, 0)]
    assert json.loads(json.dumps(states[3])) == states[3]
    expected = {"epoch": 0, "rows_consumed": 21, "seed": 5, "shuffle": "full", "partition": "global", "rows": "all"}
    digest = open_store(store).manifest.files["samples.tsv"].xxh3
    assert states[3] == {**expected, "store": digest, "count": COUNT, "world_size": 1}


@pytest.mark.parametrize(
    ("settings", "steps", "warns"),
    [
        ({}, (2, 2, 2, 2), 1),
        ({}, (2, 3, 9), 0),
        ({"shuffle": "none"}, (2, 2, 2), 0),
        ({"rank": 1, "world_size": 2}, (2, 2, 2), 0),
        ({"steps": 2}, (2, 2, 2), 0),
    ],
)
def test_lightning_is_told_that_epochs_left_after_the_same_step_have_other_rows(
    store: Path, settings: dict[str, Any], steps: tuple[int, ...], warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(store, **settings)
    for epoch, number in enumerate((*steps, 1)):
        loader.batch_sampler.sampler.set_epoch(epoch)
        loader.peek()
        assert len(rows_of(islice(loader, number))) == number
    expected = [f"{store}: Lightning leaves each epoch after 2 of 9 steps"] * warns
    assert [one.getMessage().partition(",")[0] for one in caplog.records] == expected
    assert (alive := weakref.ref(loader))() is loader
    del loader
    assert alive() is None  # nothing waits for the garbage collector


def test_set_epoch_sets_the_next_epoch(store: Path) -> None:
    with loader_of(store) as loader, loader_of(store) as plain:
        epochs = [rows_of(plain) for _ in range(6)]
        loader.set_epoch(3)
        assert loader.state_dict()["epoch"] == 3
        assert rows_of(loader) == epochs[3]
        loader.set_epoch(1)
        batches = iter(loader)
        first = next(batches)
        loader.set_epoch(5)  # applies to the next epoch
        assert (loader.epoch, loader.steps_left, loader.state_dict()["epoch"]) == (1, 8, 1)
        assert rows_of([first, *batches]) == epochs[1]
        assert (loader.state_dict()["epoch"], loader.state_dict()["rows_consumed"]) == (5, 0)
        assert (loader.epoch, loader.steps_left) == (5, 9)
        assert rows_of(loader) == epochs[5]
    assert (loader.epoch, loader.steps_left) == (6, 9)


def test_epoch_and_steps_left_are_counted_and_restored(store: Path) -> None:
    with loader_of(store) as loader, loader_of(store) as resumed:
        assert (loader.epoch, loader.steps_left) == (0, 9)
        left = []
        for batch in loader:
            assert loader.epoch == batch.epoch == 0
            left.append(loader.steps_left)
            resumed.load_state_dict(loader.state_dict())
            assert (len(resumed), resumed.steps_left) == (9, loader.steps_left or 9)
        assert left == [8, 7, 6, 5, 4, 3, 2, 1, 0]
        assert (loader.epoch, loader.steps_left) == (1, 9)
        assert [epoch for epoch in range(resumed.epoch, 3) for _ in resumed] == [1] * 9 + [2] * 9
        assert resumed.epoch == 3
        next(iter(resumed))  # an unfinished epoch
        assert (resumed.epoch, resumed.steps_left, resumed.state_dict()["epoch"]) == (3, 8, 3)
        assert [batch.epoch for batch in resumed] == [4] * 9


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("partition", ["global", "range"])
@pytest.mark.parametrize("tail", ["drop", "pad", "keep"])
def test_state_resumes_at_every_step(store: Path, shuffle: str, partition: str, tail: str) -> None:
    settings = {"shuffle": shuffle, "partition": partition, "tail": tail, "rank": 1, "world_size": 2}
    with loader_of(store, **settings) as loader:
        epochs = [[(b.rows.tolist(), b.valid) for b in loader] for _ in range(2)]
    for done in range(len(epochs[0]) + 1):
        with loader_of(store, **settings) as loader, loader_of(store, **settings) as resumed:
            batches = iter(loader)
            for _ in range(done):
                next(batches)
            resumed.load_state_dict(loader.state_dict())
            rest = [(b.rows.tolist(), b.valid) for b in resumed]
            assert rest == (epochs[0][done:] if done < len(epochs[0]) else epochs[1])


def test_global_epoch_resumes_with_a_different_world_size(store: Path) -> None:
    rows: list[int] = []
    for rank in range(2):
        with loader_of(store, batch_size=5, rank=rank, world_size=2) as loader:
            batches = iter(loader)
            rows += flat(rows_of(next(batches) for _ in range(3)))
            state = loader.state_dict()
    for rank in range(3):
        with loader_of(store, batch_size=4, rank=rank, world_size=3) as loader:
            loader.load_state_dict(state)
            rows += flat(rows_of(loader))
    assert sorted(rows) == list(range(COUNT))


def test_set_epoch_keeps_the_offset_of_the_loaded_epoch(store: Path) -> None:
    with loader_of(store) as loader, loader_of(store) as resumed, loader_of(store) as restarted:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), rows_of(batches)
        resumed.load_state_dict(state)
        resumed.set_epoch(0)
        assert rows_of(resumed) == rest
        resumed.set_epoch(0)
        assert len(rows_of(resumed)) == 9
        restarted.load_state_dict(state)
        restarted.set_epoch(1)
        assert rows_of(restarted) == rows_of(loader)


def test_epoch_with_less_than_a_batch_left_is_empty(store: Path) -> None:
    with loader_of(store, tail="drop") as loader, loader_of(store, tail="drop", batch_size=30) as larger:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        larger.load_state_dict(loader.state_dict())
        assert rows_of(larger) == []
        assert larger.state_dict()["epoch"] == 1
        assert len(rows_of(larger)) == 2


def test_state_of_a_different_loader_is_rejected(store: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"seed": 6}, "seed 6, here 5"),
        ({"shuffle": "none"}, "shuffle 'none', here 'full'"),
        ({"count": 61}, "count 61, here 60"),
        ({"partition": "range", "seed": 4}, "seed 4, here 5; partition 'range', here 'global'"),
        ({"epoch": -1}, "epoch is -1"),
        ({"rows_consumed": 61}, "rows_consumed is 61, expected at most 60"),
        ({"rows_consumed": None}, "rows_consumed is None"),
    ]
    with loader_of(store) as loader:
        for change, message in changes:
            with pytest.raises(ValueError, match=message):
                loader.load_state_dict({**loader.state_dict(), **change})
        with pytest.raises(ValueError, match="the state has no epoch; expected"):
            loader.load_state_dict({k: v for k, v in loader.state_dict().items() if k != "epoch"})


@pytest.fixture(scope="module")
def relabeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the same number of rows as `store`, but different rows."""
    folder = tmp_path_factory.mktemp("stores")
    return make_store(folder / "relabeled", random_images(COUNT), np.zeros(COUNT, np.int64), shard_rows=25)


def test_state_of_a_different_store_is_rejected_unless_other_store(store: Path, relabeled: Path) -> None:
    with loader_of(store) as loader, loader_of(relabeled) as other, loader_of(store) as same:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        message = f"a different store: its rows have digest '{state['store']}', those of {relabeled} have "
        with pytest.raises(ValueError, match=f"{message}'{other.state_dict()['store']}'; .* pass other_store=True"):
            other.load_state_dict(state)
        with pytest.raises(ValueError, match="seed 6, here 5"):
            other.load_state_dict({**state, "seed": 6}, other_store=True)
        with pytest.raises(ValueError, match="the state has no store; expected"):
            same.load_state_dict({name: value for name, value in state.items() if name != "store"})
        other.load_state_dict(state, other_store=True)
        same.load_state_dict(state)
        assert rows_of(other) == rows_of(same) == rows_of(batches)


def test_state_resumes_with_other_container_shards_or_columns(
    store: Path, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    copy = make_store(tmp_path / "copy", images, container="hdf5", columns={"score": np.zeros(COUNT, "<f4")})
    with loader_of(store) as loader, loader_of(copy) as converted:
        converted.load_state_dict(loader.state_dict())
        assert rows_of(converted) == rows_of(loader)


def test_state_needs_the_same_blocks_or_ranges(store: Path) -> None:
    with loader_of(store, shuffle="window") as loader, loader_of(store) as full:
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match="block_rows 5, here 4"):
            loader.load_state_dict({**state, "block_rows": 5})
        with pytest.raises(ValueError, match="block_rows None, here 4"):
            loader.load_state_dict({name: value for name, value in state.items() if name != "block_rows"})
        with pytest.raises(ValueError, match="shuffle 'full', here 'window'"):
            loader.load_state_dict(full.state_dict())
    two, three = (loader_of(store, world_size=count, partition="range", rank=0) for count in (2, 3))
    with two, three, pytest.raises(ValueError, match="world_size 2, here 3"):
        three.load_state_dict(two.state_dict())


@pytest.mark.parametrize("state", [None, [], "state.pt", 3, {}, {"epoch": 3, "global_step": 10, "seed": 5}])
def test_what_is_no_state_is_refused_in_one_sentence(store: Path, state: Any) -> None:
    message = r"^the state (is|has no) .*[,;] expected what state_dict\(\) of a Loader returned$"
    with loader_of(store) as loader, pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor])
def test_any_type_of_whole_number_is_accepted(store: Path, kind: Callable[[int], Any]) -> None:
    names: Any = {"batch_size": 4, "rank": 0, "world_size": 2, "seed": 3, "prefetch": 2, "threads": 1}
    settings: Any = {name: kind(value) for name, value in names.items()}
    with Loader(store, **settings) as loader, Loader(store, **names) as plain:
        loader.set_epoch(kind(3))
        plain.set_epoch(3)
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state == plain.state_dict()
        assert rows_of(loader) == rows_of(plain)
        loader.load_state_dict({**state, "epoch": kind(3), "rows_consumed": kind(8)})
        assert (loader.epoch, loader.steps_left, len(rows_of(loader))) == (3, 6, 6)


@pytest.mark.parametrize("wrong", [True, np.True_, np.float64(4), np.array([4, 4]), "4"])
def test_other_types_are_not_whole_numbers(store: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"batch_size is .*, expected a whole number of 1 or more"):
        Loader(store, batch_size=wrong)
    with loader_of(store) as loader, pytest.raises(ValueError, match=r"epoch is .*, expected a whole number of 0"):
        loader.set_epoch(wrong)


def test_epoch_that_has_yielded_no_batch_can_be_set(store: Path) -> None:
    """Lightning creates the iterator of an epoch before it sets its number."""
    with Loader(store, batch_size=8) as loader:
        batches = [batch.rows.tolist() for _ in range(3) for batch in loader]
    with Loader(store, batch_size=8) as loader:
        iterator = iter(loader)
        loader.set_epoch(2)
        assert (loader.epoch, loader.steps_left) == (2, len(loader))
        first = next(iterator)
        assert [first.rows.tolist(), *(batch.rows.tolist() for batch in iterator)] == batches[-len(loader) :]
        assert (first.epoch, loader.epoch) == (2, 3)


def test_peek_leaves_the_epoch_unused(store: Path) -> None:
    with Loader(store, batch_size=8) as loader, Loader(store, batch_size=8) as other:
        for _ in range(2):
            first, state = loader.peek(), loader.state_dict()
            assert (loader.epoch, loader.steps_left) == (other.epoch, len(loader))
            batches = iter(loader)
            with pytest.raises(RuntimeError, match="is running"):
                loader.peek()
            rows = [batch.rows.tolist() for batch in batches]
            assert rows == [batch.rows.tolist() for batch in other]
            assert (first.rows.tolist(), first.epoch) == (rows[0], state["epoch"])
    with pytest.raises(RuntimeError, match="closed"):
        loader.peek()


def test_epoch_that_is_set_after_the_last_batch_does_not_run(store: Path) -> None:
    with Loader(store, batch_size=8) as loader:
        seen = 0
        for _ in loader:
            seen += 1
            if not loader.steps_left:
                loader.set_epoch(loader.epoch + 5)
        assert (seen, loader.epoch) == (len(loader), 5)


Steps = list[tuple[int, int, list[int]]]


def steps_of(loader: Loader, epochs: int) -> Steps:
    return [(batch.epoch, batch.valid, batch.rows.tolist()) for _ in range(loader.epoch, epochs) for batch in loader]


@pytest.mark.parametrize("tail", ["drop", "keep"])
@pytest.mark.parametrize(("steps", "epochs"), [(1, 20), (4, 5), (8, 3), (20, 2)])
def test_epochs_of_some_steps_continue_through_the_passes(store: Path, steps: int, epochs: int, tail: str) -> None:
    with loader_of(store, tail=tail) as plain:
        passes = [batch for _, *batch in steps_of(plain, 6)]
    expected = [(number // steps, *batch) for number, batch in enumerate(passes[: steps * epochs])]
    with loader_of(store, tail=tail, steps=steps) as loader:
        assert (len(loader), loader.steps_left) == (steps, steps)
        states, seen = [loader.state_dict()], []
        for epoch in range(epochs):
            for batch in loader:
                seen.append((batch.epoch, batch.valid, batch.rows.tolist()))
                states.append(json.loads(json.dumps(loader.state_dict())))
                assert loader.epoch == epoch
                assert loader.steps_left == steps - 1 - (len(seen) - 1) % steps
        assert seen == expected
    for done in range(0, len(states), 3):
        with loader_of(store, tail=tail, steps=steps) as resumed:
            resumed.load_state_dict(states[done])
            assert (resumed.epoch, resumed.steps_left) == (done // steps, steps - done % steps)
            assert steps_of(resumed, epochs) == expected[done:]
    with loader_of(store, tail=tail, steps=steps) as loader:
        loader.set_epoch(epochs - 1)
        assert steps_of(loader, epochs) == expected[-steps:]


def test_rows_that_repeat_within_an_epoch_have_numbers_of_their_own(store: Path) -> None:
    with loader_of(store, steps=20) as loader:
        batches = [batch for _ in range(2) for batch in loader]
    positions = torch.cat([batch.positions for batch in batches if batch.positions is not None]).tolist()
    assert sorted(positions) == list(range(len(positions)))


def test_rows_of_different_ranks_have_different_numbers(store: Path) -> None:
    numbers: list[int] = []
    for rank in range(2):
        settings = {"rank": rank, "world_size": 2, "partition": "range", "tail": "drop"}
        with loader_of(store, steps=20, **settings) as loader:
            batches = list(loader)
        numbers += torch.cat([batch.positions for batch in batches if batch.positions is not None]).tolist()
    assert len(numbers) == len(set(numbers)) == 2 * 20 * 7


def test_epoch_of_some_steps_resumes_with_a_different_world_size(store: Path) -> None:
    settings = {"tail": "drop", "batch_size": 5, "steps": 4}  # of 10 rows
    with loader_of(store, rank=0, world_size=2, **settings) as loader:
        epoch = [batch.rows.tolist() for _ in range(2) for batch in loader]
        loader.set_epoch(1)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    with loader_of(store, **{**settings, "steps": 8}) as alone:
        alone.load_state_dict(state)
        assert alone.steps_left == 6
        assert [batch.rows.tolist() for batch in alone][::2] == epoch[5:]
        now = alone.state_dict()
        assert (now["epoch"], 60 * now["pass"] + now["rows_consumed"]) == (2, 2 * 40)  # where epoch 1 ended


def test_states_with_and_without_steps_do_not_mix(store: Path) -> None:
    with loader_of(store) as plain, loader_of(store, steps=4) as loader:
        with pytest.raises(ValueError, match="is from a Loader without steps=, and this one was created with it"):
            loader.load_state_dict(plain.state_dict())
        with pytest.raises(ValueError, match="is from a Loader with steps=, and this one was created without it"):
            plain.load_state_dict(loader.state_dict())
        with pytest.raises(ValueError, match="epoch_rows is None"):
            loader.load_state_dict({**loader.state_dict(), "epoch_rows": None})
    with pytest.raises(ValueError, match="steps is 0"):
        loader_of(store, steps=0)
