"""Slots: their alignment and reuse."""

from __future__ import annotations

import weakref

import pytest
import torch

from decodeonce.loader.buffers import Slots, page_aligned_slot

SHAPE = (3, 5, 7, 3)


def make_slots(size: int) -> Slots:
    return Slots(lambda: page_aligned_slot(SHAPE), size)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), SHAPE, (64, 96, 96, 3), (256, 128, 128, 3)])
def test_slots_start_at_page_boundaries(shape: tuple[int, ...]) -> None:
    slots = [page_aligned_slot(shape) for _ in range(5)]
    assert [slot.pixels.ctypes.data % 4096 for slot in slots] == [0] * 5
    assert {slot.pixels.shape for slot in slots} == {shape}
    assert slots[0].pixels.flags.writeable


def test_slot_is_given_back_with_the_last_view_of_its_tensor() -> None:
    free = make_slots(1)
    slot = free.take()
    tensor = torch.from_numpy(free.lend_rows(slot, 2))
    assert (tensor.data_ptr(), tuple(tensor.shape)) == (slot.pixels.ctypes.data, (2, *SHAPE[1:]))
    view = tensor[1, 2:, 3].permute(1, 0)
    array = view.numpy()
    del tensor
    assert free.take() is not slot
    del view
    assert free.take() is not slot
    del array
    assert free.take() is slot


def test_all_slots_are_used_before_one_is_reused() -> None:
    free = make_slots(3)
    first = free.take()
    free.give_back(first)
    second, third = free.take(), free.take()
    assert len({id(slot) for slot in (first, second, third)}) == 3
    assert free.take() is first
    assert free.made == 3


def test_slots_are_reused_if_the_user_always_holds_more_of_them_than_are_kept() -> None:
    free = make_slots(2)
    held = [free.lend_rows(free.take(), 2) for _ in range(5)]
    for _ in range(20):
        del held[0]
        held.append(free.lend_rows(free.take(), 2))
    assert free.made == 5


def test_closed_slots_free_memory() -> None:
    free = make_slots(2)
    slots = [free.take(), free.take()]
    references = [weakref.ref(slots[0]), weakref.ref(slots[1])]
    free.give_back(slots.pop())
    free.close()
    free.give_back(slots.pop())
    assert [slot() for slot in references] == [None, None]


def test_lent_slots_free_memory_if_closed_or_surplus() -> None:
    free = make_slots(1)
    lent = [free.lend_rows(free.take(), 2) for _ in range(3)]
    pixels = [weakref.ref(array.base) for array in lent]
    while lent:
        lent.pop()
    assert [array() is None for array in pixels] == [False, True, True]
    last = free.lend_rows(free.take(), 2)
    free.close()
    assert pixels[0]() is not None
    del last
    assert pixels[0]() is None


def test_kept_slots_are_replaced_and_surplus_slots_are_freed() -> None:
    free = make_slots(2)
    slots = [free.take() for _ in range(5)]
    assert free.made == 5
    for slot in slots:
        free.give_back(slot)
    assert [free.take() for _ in range(3)][:2] == slots[-2:]
    assert free.made == 6
