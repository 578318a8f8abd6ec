"""Small stores for tests, made from arrays with the package's own writer."""

import math
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.store.format import CONTAINERS
from decodeonce.store.hashing import row_checksum
from decodeonce.store.layout import Paired, PixelsName, StorePaths
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
    pixels: PixelsName = "rgb",
) -> Path:
    """Write a store of these images at `root` and return `root`. Labels default to row % classes.

    `paired` are masks (count, H, W) and second images (count, H, W, 3).
    """
    count, paired = len(images), paired or {}
    packed = images if pixels == "rgb" else np.stack([packed_row(image, pixels) for image in images])
    whole = np.concatenate([array.reshape(count, -1) for array in (packed, *paired.values())], axis=1)
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
    facts |= {"shape": images.shape[1:], "pixel_mean": mean, "pixel_std": std, "pixels": pixels}
    return seal(root, labels, sums, shard_rows=shard_rows, classes=classes, columns=columns, **facts)


def packed_row(image: NDArray[np.uint8], pixels: PixelsName = "yuv420") -> NDArray[np.uint8]:
    """Return an RGB image as its row in a store: the integers that docs/reference/format.md defines."""
    wide = image.astype(np.int64)
    small = (wide[::2, ::2] + wide[::2, 1::2] + wide[1::2, ::2] + wide[1::2, 1::2] + 2) >> 2
    y = (wide @ np.array([19595, 38470, 7471]) + 32768) >> 16
    u = (small @ np.array([-5529, -10855, 16384]) + (128 << 15) + 16383) >> 15
    v = (small @ np.array([16384, -13720, -2664]) + (128 << 15) + 16383) >> 15
    bytes_of = packed_blocks if pixels == "bc4" else lambda plane: plane.reshape(-1).astype(np.uint8)
    return np.concatenate([bytes_of(plane) for plane in (y, u, v)])


def packed_blocks(plane: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the blocks of a plane, block by block and value by value."""
    blocks = bytearray()
    for top, left in np.ndindex(plane.shape[0] // 4, plane.shape[1] // 4):
        values = plane[4 * top : 4 * top + 4, 4 * left : 4 * left + 4].reshape(-1).tolist()
        high, low = max(values), min(values)
        sevenths = [(14 * (value - low) + high - low) // (2 * (high - low)) if high > low else 0 for value in values]
        bits = sum((1, 7, 6, 5, 4, 3, 2, 0)[weight] << 3 * at for at, weight in enumerate(sevenths))
        blocks += bytes([high, low]) + bits.to_bytes(6, "little")
    return np.frombuffer(bytes(blocks), np.uint8)


def unpacked_row(row: NDArray[np.uint8], height: int, width: int, pixels: PixelsName = "yuv420") -> NDArray[np.uint8]:
    """Return the RGB image in a row of a store: the integers that docs/reference/format.md defines."""
    y, u, v = np.split(row.astype(np.int64), [len(row) * 2 // 3, len(row) * 5 // 6])
    if pixels == "bc4":
        halves = (height // 2, width // 2)
        y, u, v = unpacked_blocks(y, height, width), unpacked_blocks(u, *halves), unpacked_blocks(v, *halves)
    y = 64 * y.reshape(height, width)
    u, v = (plane.reshape(height // 2, width // 2).repeat(2, 0).repeat(2, 1) - 128 for plane in (u, v))
    levels = (y + 90 * v + 32, y - 22 * u - 46 * v + 32, y + 113 * u + 32)
    return np.stack([(level >> 6).clip(0, 255) for level in levels], axis=-1).astype(np.uint8)


def unpacked_blocks(blocks: NDArray[np.int64], height: int, width: int) -> NDArray[np.int64]:
    """Return the values of the blocks of a plane, block by block and value by value."""
    plane = np.empty((height, width), np.int64)
    for number, (high, low, *parts) in enumerate(blocks.reshape(-1, 8).tolist()):
        bits = int.from_bytes(bytes(parts), "little")
        weights = [(7, 0, 6, 5, 4, 3, 2, 1)[bits >> 3 * at & 7] for at in range(16)]
        top, left = divmod(number, width // 4)
        values = [(weight * high + (7 - weight) * low + 3) // 7 for weight in weights]
        plane[4 * top : 4 * top + 4, 4 * left : 4 * left + 4] = np.reshape(values, (4, 4))
    return plane


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
