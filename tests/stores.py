"""Small stores for tests, made from arrays with the package's own writer."""

import math
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.store.containers import CONTAINERS
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import Paired, StorePaths
from decodeonce.store.manifest import DATA_OFFSET, Column, ImageClass, Manifest
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, Sample, line, sample_lines
from decodeonce.store.writer import seal_store, shard_ranges, write_array, write_small


def random_images(count: int, *, shape: tuple[int, int, int] = (8, 6, 3), seed: int = 0) -> NDArray[np.uint8]:
    """Return random images, uint8 (count, *shape)."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def pixel_statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel, rounded only once so that all NumPy versions agree."""
    counts = [np.bincount(channel, minlength=256).tolist() for channel in images.reshape(-1, images.shape[3]).T]
    moments = [[sum(n * level**power for level, n in enumerate(c)) for power in (0, 1, 2)] for c in counts]
    return tuple(s / n for n, s, _ in moments), tuple(math.sqrt((n * q - s * s) / n**2) for n, s, q in moments)


def make_store(
    root: Path,
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None = None,
    *,
    container: str = "npy",
    shard_rows: int | None = None,
    classes: int = 3,
    block_rows: int = 4,
    columns: Mapping[str, NDArray[Any]] | None = None,
    paired: Mapping[str, NDArray[np.uint8]] | None = None,
) -> Path:
    """Write a store of these images at `root` and return `root`. Labels default to row % classes.

    `paired` are masks (count, H, W) and second images (count, H, W, 3).
    """
    count, paired = len(images), paired or {}
    whole = np.concatenate([array.reshape(count, -1) for array in (images, *paired.values())], axis=1)
    labels = np.arange(count) % classes if labels is None else labels
    shard_rows = shard_rows or count
    paths = StorePaths(root)
    root.mkdir(parents=True)
    for index, (first, rows) in enumerate(shard_ranges(count, shard_rows)):
        path = paths.shard(index, CONTAINERS[container].suffix)
        path.write_bytes(bytes(DATA_OFFSET) + whole[first : first + rows].tobytes())
    sums = np.array([row_checksum(row.tobytes()) for row in whole], np.uint64)
    channels = [Paired(name, 3 if array.ndim == 4 else 1) for name, array in paired.items()]
    facts: dict[str, Any] = {"container": container, "block_rows": block_rows, "paired": tuple(channels)}
    mean, std = pixel_statistics(images)
    facts |= {"shape": images.shape[1:], "pixel_mean": mean, "pixel_std": std}
    return seal(root, labels, sums, shard_rows=shard_rows, classes=classes, columns=columns, **facts)


def seal(
    root: Path,
    labels: NDArray[np.int64],
    sums: NDArray[np.uint64],
    *,
    shard_rows: int,
    classes: int,
    columns: Mapping[str, NDArray[Any]] | None = None,
    **facts: Any,
) -> Path:
    """Write the other files of a store whose shards hold rows with these labels and checksums; return `root`."""
    count, paths, columns = len(labels), StorePaths(root), columns or {}
    files = {"labels.npy": write_array(paths.labels, (count,), np.dtype("<i8"), [labels])}
    files["checksums.npy"] = write_array(paths.checksums, (count,), np.dtype("<u8"), [sums])
    samples = [
        Sample(row, int(label), f"class{label}", f"class{label}/{row}.jpg", 9, 9, "", f"{row:016x}")
        for row, label in enumerate(labels)
    ]
    files["samples.tsv"] = write_small(paths.samples, [line(SAMPLE_COLUMNS), sample_lines(map(astuple, samples))])
    files["rejects.tsv"] = write_small(paths.rejects, [line(REJECT_COLUMNS)])
    for name, array in columns.items():
        files[f"{name}.npy"] = write_array(root / f"{name}.npy", array.shape, array.dtype, [array])
    draft = Manifest(
        count=count,
        shards=(),
        classes=tuple(ImageClass(f"class{k}", f"the class {k}") for k in range(classes)),
        recipe={"size": list(facts["shape"][:2])},
        source={"kind": "test", "digest": "0" * 16},
        columns=tuple(Column(name, f"{name}.npy", a.dtype.str, a.shape[1:]) for name, a in columns.items()),
        files={},
        **facts,
    )
    seal_store(paths, draft, shard_rows=shard_rows, scratch=root, files=files, labels=[labels])
    return root
