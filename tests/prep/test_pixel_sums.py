"""The sums behind a store's mean and standard deviation: they are exact and depend only on the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from decodeonce.prep.building import WorkSettings, build
from decodeonce.prep.building.journal import PixelSums, summed_lines
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import open_imagenet
from decodeonce.store import open_store
from tests.images import make_tree


@pytest.mark.parametrize("height", [1, 31, 32, 63, 64, 95, 256, 1000])
def test_sums_are_exact_at_every_height(height: int) -> None:
    rows = np.random.default_rng(height).integers(0, 256, (5, height, 7, 3), np.uint8)
    rows[0] = 255  # the largest possible sum
    sums, step = PixelSums((height, 7, 3)), max(1, height // 32)
    expected = []
    for row, checksum in zip(rows, [0, 1, 2, 5, 2**64 - 1], strict=True):
        sums.add(row.tobytes(), checksum)
        expected.append(row[checksum % step :: step][: height // step].reshape(-1, 3))
    values = np.concatenate(expected).astype(object)
    assert len(values) == 5 * summed_lines(height) * 7
    assert sums.by_channel() == (values.sum(axis=0).tolist(), (values**2).sum(axis=0).tolist())


def test_every_line_is_summed_for_some_checksum() -> None:
    row = np.zeros((256, 4, 3), np.uint8)
    row[:, 0, 1] = np.arange(256)
    sums = PixelSums(row.shape)
    for checksum in range(8):
        sums.add(row.tobytes(), checksum)
    assert sums.by_channel()[0] == [0, sum(range(256)), 0]


def test_mean_and_std_match_rows_and_checksums(tmp_path: Path) -> None:
    """Compute both with NumPy from the finished store, as docs/reference/format.md defines them."""
    make_tree(tmp_path / "src", classes=2, per_class=3)
    build(
        open_imagenet(tmp_path / "src"),
        tmp_path / "store",
        Recipe(height=130, width=70),
        WorkSettings(workers=2, max_bad="2"),
    )
    store = open_store(tmp_path / "store")
    lines = [
        image[int(checksum) % 4 :: 4][:32] for image, checksum in zip(store.images[...], store.checksums, strict=True)
    ]
    values = np.concatenate(lines).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(store.manifest.pixel_mean, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(store.manifest.pixel_std, values.std(0), rtol=1e-12)
