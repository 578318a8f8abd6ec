"""The images that all peers get, and a plain way to decode them with Pillow."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.uint8]
SAME_DECODER = "PEERS_SAME_DECODER"  # set in the environment of processes that use this project's decoder


def decode(path: Path, size: int, *, stretch: bool = False) -> Row:
    """Decode a file to (size, size, 3): resize the shorter side to `size`, bilinear, and crop the center.

    With `stretch`, resize both sides to `size`. Pillow decodes it, or simplejpeg if SAME_DECODER is set.
    """
    from PIL import Image

    if SAME_DECODER in os.environ:
        import simplejpeg

        pixels = simplejpeg.decode_jpeg(path.read_bytes(), "RGBX")
        # This makes no copy: pillow-simd stores and resizes four channels per pixel.
        image = Image.frombuffer("RGBX", pixels.shape[1::-1], pixels, "raw", "RGBX", 0, 1)
    else:
        with Image.open(path) as file:
            image = file.convert("RGB")
    width, height = (size if stretch else side * size // min(image.size) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return np.frombuffer(image.tobytes("raw", "RGB"), np.uint8).reshape(size, size, 3)


def decode_pair(file: tuple[Path, int], size: int, *, stretch: bool = False) -> tuple[Row, int]:
    """Decode a file and return it with its label."""
    return decode(file[0], size, stretch=stretch), file[1]


def decoded(files: Any, size: int, workers: int, *, stretch: bool = False) -> Iterator[tuple[Row, int]]:
    """Decode files in `workers` processes and yield them in order, for formats that one process writes."""
    with multiprocessing.Pool(workers) as pool:
        yield from pool.imap(partial(decode_pair, size=size, stretch=stretch), files, chunksize=16)


def in_shares(task: Callable[..., None], workers: int, *arguments: Any) -> None:
    """Run task(share, workers, *arguments) in `workers` processes, for formats of which each process writes a part."""
    with multiprocessing.Pool(workers) as pool:
        pool.starmap(task, [(share, workers, *arguments) for share in range(workers)], chunksize=1)


def plain_tree(tree: Path, count: int, scratch: Path) -> Path:
    """Return a folder in `scratch` with a subfolder `tree`, which links `count` random images of `tree`.

    All of them are plain, undamaged JPEGs, because ImageNet's 30 or so unusual images stop several of the peers.
    If `tree` has fewer than `count`, images are linked several times under different names.
    """
    found = sorted(tree.glob("train/*/*.JPEG"))
    names = "\n".join([str(count), str(tree.resolve()), *(str(path.relative_to(tree)) for path in found)])
    folder = scratch / f"images-{hashlib.sha256(names.encode()).hexdigest()[:12]}"
    if not (folder / "tree").exists():
        part = folder / "tree.part"
        shutil.rmtree(part, ignore_errors=True)
        plain = list(_first_plain(random.Random(0).sample(found, len(found)), count))
        if not plain:
            sys.exit(f"{tree}: none of its {len(found)} files train/*/*.JPEG is a plain JPEG")
        for number in range(count):
            path, copy = plain[number % len(plain)], number // len(plain)
            _link(path, part / path.relative_to(tree).with_name(f"{copy}_{path.name}"))
        part.rename(folder / "tree")
    return folder


def _first_plain(paths: list[Path], count: int) -> Iterator[Path]:
    is_plain = _decodes_with_simplejpeg if find_spec("simplejpeg") else _decodes_with_pillow
    for path in paths:
        if count == 0:
            return
        with suppress(ValueError):  # raised for files that are not valid JPEGs
            if is_plain(path):
                count -= 1
                yield path


def _decodes_with_simplejpeg(path: Path) -> bool:
    import simplejpeg

    data = path.read_bytes()
    if plain := simplejpeg.is_jpeg(data) and simplejpeg.decode_jpeg_header(data)[2] != "CMYK":
        simplejpeg.decode_jpeg(data)
    return bool(plain)


def _decodes_with_pillow(path: Path) -> bool:
    from PIL import Image

    data = io.BytesIO(path.read_bytes())
    try:
        with Image.open(data) as image:
            image.load()
            return image.format == "JPEG" and image.mode != "CMYK"
    except OSError as error:  # Pillow's error for damaged images and other formats
        raise ValueError(f"{path}: {error}") from error


def _link(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path.resolve(), to)
    except OSError:  # `to` is on another file system
        shutil.copyfile(path, to)
