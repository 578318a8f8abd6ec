"""TurboLoader: JPEGs of a tar, decoded in the loop, and TBL-RAW, the format that it decodes once.

Settings are from its README: "Quick Start" (`output_format="pytorch"`, `image_size`, `ImageNetNormalize`, `train_aug`)
for the tar, and `preprocess_to_tbl`, then `DataLoader("data.tbl", train_aug=True)`, for TBL-RAW. Labels are looked up
by `meta["indices"]`. An epoch has each row once, so a long epoch is several of TurboLoader's.

Images are stretched to squares, and the other peers crop them. Batches are float32, because it has no uint8: between 0
and 1 without augmentation. Its threads cannot be limited, so the process is limited to as many cores as workers.

A file that it cannot decode, such as a CMYK JPEG, a PNG or an empty file, becomes a black image, in TBL-RAW for good.
Python warns once per loader, and standard error has the number of each in the tar. A truncated JPEG is completed in
grey, and counts as decoded.

In the build with this project's decoder, TurboLoader's writer gets decoded rows.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.harness.images import SAME_DECODER, decoded
from bench.peers.harness.peer import Arm, Batches, Peer, Source

TAR, ROWS = "images.tar", "rows.tbl"
NOTE = "float32; files that it cannot decode become black images"


def write_tar(source: Source, folder: Path) -> None:
    """Write the images, in order, to a tar, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{TAR}.part"
    if not (folder / TAR).exists():
        # Without `dereference`, a file that was added before under another name would be a link without data.
        with tarfile.open(part, "w", dereference=True) as tar:
            for row, (path, _) in enumerate(source.files):
                tar.add(path, f"{row:08d}.jpg")
        part.rename(folder / TAR)


def build(source: Source, folder: Path) -> None:
    """Write one .tbl file."""
    import turboloader

    limit_threads(source)
    if SAME_DECODER in os.environ:
        writer = turboloader.TblWriterV2(str(folder / ROWS), enable_compression=False)
        for row, _ in decoded(source.files, source.size, source.workers):
            writer.add_sample(row.tobytes(), turboloader.SampleFormat.RAW_U8, width=source.size, height=source.size)
        writer.finalize()
        return
    write_tar(source, folder)
    tar = folder / TAR
    turboloader.preprocess_to_tbl(str(tar), str(folder / ROWS), image_size=source.size, num_workers=source.workers)
    tar.unlink()


def limit_threads(source: Source) -> None:
    """Limit this process to as many cores as workers."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: source.workers])


def read(source: Source, folder: Path, *, file: str, augmented: bool = False) -> Callable[[], Batches]:
    """Return shuffled epochs of DataLoader over `file`."""
    import turboloader

    limit_threads(source)
    options: dict[str, Any] = {"shuffle": True, "num_workers": source.workers, "output_format": "pytorch"}
    if augmented:
        options |= {"transform": turboloader.ImageNetNormalize(), "train_aug": True}
    size = source.crop if augmented else source.size
    loader = turboloader.DataLoader(str(folder / file), batch_size=source.batch_size, image_size=size, **options)
    labels = np.array([label for _, label in source.files])
    number = 0

    def epoch() -> Iterator[tuple[Any, Any]]:
        nonlocal number
        for _ in range(source.copies):
            loader.set_epoch(number)
            number += 1
            for images, meta in loader:
                yield images, labels[meta["indices"]]

    return epoch


from_tar, from_rows = partial(read, file=TAR), partial(read, file=ROWS)

PEER = Peer(
    title="TurboLoader",
    modules=("turboloader", "PIL.Image"),
    distributions=("turboloader", "numpy", "pillow"),
    arms=(
        Arm("TurboLoader, TBL-RAW", from_rows, stretched=True, unit_range=True, note=NOTE),
        Arm("TurboLoader, TBL-RAW, augmented", partial(from_rows, augmented=True), augmented=True, note=NOTE),
        Arm(
            "TurboLoader, JPEG tar",
            from_tar,
            decodes=True,
            prepare=write_tar,
            stretched=True,
            unit_range=True,
            note=NOTE,
        ),
        Arm(
            "TurboLoader, JPEG tar, augmented",
            partial(from_tar, augmented=True),
            decodes=True,
            prepare=write_tar,
            augmented=True,
            note=NOTE,
        ),
    ),
    build=build,
    decoder="its libjpeg",
    requirements="turboloader==2.39.0",
)
