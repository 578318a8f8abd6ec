"""Slots: where they begin, and when they come back."""

from __future__ import annotations

import weakref

import pytest
import torch

from decodeonce.loader.ring import Ring, page_aligned_slot

SHAPE = (3, 5, 7, 3)


def make_ring(size: int) -> Ring:
    return Ring(lambda: page_aligned_slot(SHAPE), size)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), SHAPE, (64, 96, 96, 3), (256, 128, 128, 3)])
def test_slots_begin_on_pages(shape: tuple[int, ...]) -> None:
    slots = [page_aligned_slot(shape) for _ in range(5)]
    assert [slot.pixels.ctypes.data % 4096 for slot in slots] == [0] * 5
    assert {slot.pixels.shape for slot in slots} == {shape}
    assert slots[0].pixels.flags.writeable


def test_a_slot_comes_back_when_the_last_view_of_its_tensor_goes() -> None:
    ring = make_ring(1)
    slot = ring.take()
    tensor = torch.from_numpy(ring.lend(slot, 2))
    assert (tensor.data_ptr(), tuple(tensor.shape)) == (slot.pixels.ctypes.data, (2, *SHAPE[1:]))
    view = tensor[1, 2:, 3].permute(1, 0)
    array = view.numpy()
    del tensor
    assert ring.take() is not slot
    del view
    assert ring.take() is not slot
    del array
    assert ring.take() is slot


def test_the_ring_is_filled_before_slots_are_used_again() -> None:
    ring = make_ring(3)
    first = ring.take()
    ring.give_back(first)
    second, third = ring.take(), ring.take()
    assert len({id(slot) for slot in (first, second, third)}) == 3
    assert ring.take() is first
    assert ring.made == 3


def test_a_closed_ring_keeps_no_slot() -> None:
    ring = make_ring(2)
    slots = [ring.take(), ring.take()]
    known = [weakref.ref(slots[0]), weakref.ref(slots[1])]
    ring.give_back(slots.pop())
    ring.close()
    ring.give_back(slots.pop())
    assert [slot() for slot in known] == [None, None]


def test_a_slot_that_is_held_is_replaced_and_too_many_are_let_go() -> None:
    ring = make_ring(2)
    slots = [ring.take() for _ in range(5)]
    assert ring.made == 5
    for slot in slots:
        ring.give_back(slot)
    assert [ring.take() for _ in range(3)][:2] == slots[:2]
    assert ring.made == 6
