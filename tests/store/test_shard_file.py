"""Positioned writes put bytes at the right offsets, and a full disk raises an error, not a signal."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodeonce.store.files import PAGE, ShardFile, page_aligned_buffer

MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [1, 17, PAGE - 1, PAGE, PAGE + 1, 10**6])
def test_buffers_are_page_aligned(nbytes: int) -> None:
    buffers = [page_aligned_buffer(nbytes) for _ in range(3)]
    for buffer in buffers:
        assert np.frombuffer(buffer, np.uint8).ctypes.data % PAGE == 0
        assert buffer.nbytes == nbytes
        assert bytes(buffer) == bytes(nbytes)
        buffer[-1] = 255


PIECES = st.lists(
    st.tuples(
        st.sampled_from([0, PAGE, 2 * PAGE, 5 * PAGE]) | st.integers(0, 5 * PAGE),
        st.sampled_from([0, PAGE, 3 * PAGE]) | st.integers(0, 3 * PAGE),
        st.sampled_from(["pages", "shifted", "read-only"]),
    ),
    max_size=8,
)


@given(pieces=PIECES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_direct_and_buffered_writes_give_the_same_bytes(tmp_path: Path, pieces: list[tuple[int, int, str]]) -> None:
    path, model, noise = tmp_path / "shard", bytearray(8 * PAGE), np.random.default_rng(0)
    path.write_bytes(model)
    with ShardFile(path) as shard:
        for offset, nbytes, kind in pieces:
            content = noise.bytes(nbytes)
            data = memoryview(content)
            if kind != "read-only":
                shift = 0 if kind == "pages" else 16
                data = page_aligned_buffer(nbytes + shift)[shift:]
                data[:] = content
            shard.write(data, offset)
            model[offset : offset + nbytes] = content
            back = page_aligned_buffer(nbytes)
            assert shard.read(back, offset) == nbytes
            assert bytes(back) == content
        shard.sync()
    assert path.read_bytes() == model


@pytest.mark.parametrize("nbytes", [64 * PAGE, 64 * PAGE - 1], ids=["pages", "unaligned"])
def test_write_to_full_disk_is_an_error(small_disk: Path, nbytes: int) -> None:
    path, data = small_disk / "shard", page_aligned_buffer(nbytes)
    data[:] = b"\xaa" * nbytes
    path.touch()
    os.truncate(path, 4 * MIB)  # as on a file system without fallocate: the file has its size, but no space
    written = []

    def fill(shard: ShardFile) -> None:
        for offset in range(0, 4 * MIB, 64 * PAGE):
            shard.write(data, offset)
            written.append(offset)

    with ShardFile(path) as shard, pytest.raises(OSError, match="No space left") as caught:
        fill(shard)
    assert caught.value.errno == errno.ENOSPC
    assert 0 < len(written) <= 4
    content = path.read_bytes()
    for offset in written:  # earlier writes are intact
        assert content[offset : offset + nbytes] == bytes(data)
