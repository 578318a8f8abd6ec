"""Slots: their alignment and reuse."""

import weakref

import torch

from decodeonce.loader.buffers import Slots, page_aligned_slot

SHAPE = (3, 5, 7, 3)


def make_slots(size: int) -> Slots:
    return Slots(lambda: page_aligned_slot(SHAPE), size)


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


def test_slots_are_reused_if_the_user_always_holds_more_of_them_than_are_kept() -> None:
    free = make_slots(2)
    held = [free.lend_rows(free.take(), 2) for _ in range(5)]
    for _ in range(20):
        del held[0]
        held.append(free.lend_rows(free.take(), 2))
    assert free.made == 5


def test_lent_slots_free_memory_if_closed_or_surplus() -> None:
    free = make_slots(1)
    lent = [free.lend_rows(free.take(), 2) for _ in range(3)]
    pixels = [weakref.ref(array.base) for array in lent]
    while lent:
        lent.pop()
    assert [array() is None for array in pixels] == [False, True, True]
    last = free.lend_rows(free.take(), 2)
    free.clear()
    assert pixels[0]() is not None
    del last
    assert pixels[0]() is None
