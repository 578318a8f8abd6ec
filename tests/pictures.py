"""Pictures made for tests: photograph-like enough to compress, small enough to be quick, some of them odd or broken."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def picture(width: int, height: int, *, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """A smooth picture with some noise, in the mode asked for."""
    rng = np.random.default_rng([seed, width, height])
    coarse = rng.integers(0, 256, (max(1, height // 16) + 1, max(1, width // 16) + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = smooth + rng.integers(-12, 13, smooth.shape, dtype=np.int16)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    """The picture as a file's bytes; JPEG quality 90 unless said otherwise."""
    out = io.BytesIO()
    image.save(out, format, **({"quality": 90} if format == "JPEG" else {}) | options)
    return out.getvalue()


def jpeg(width: int = 60, height: int = 40, *, seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    """A JPEG's bytes."""
    return encoded(picture(width, height, seed=seed, mode=mode), **options)


def make_tree(root: Path, *, classes: int = 3, per_class: int = 5, split: str = "train", seed: int = 0) -> Path:
    """Write root/<split>/n000000NN/*.JPEG with pictures of many sizes; returns root."""
    rng = np.random.default_rng(seed)
    for label in range(classes):
        folder = root / split / f"n{label:08d}"
        folder.mkdir(parents=True)
        for number in range(per_class):
            width, height = (int(side) for side in rng.integers(20, 120, 2))
            data = jpeg(width, height, seed=1000 * label + number + seed)
            (folder / f"{folder.name}_{number}.JPEG").write_bytes(data)
    return root


def reference_row(data: bytes, height: int, width: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What torchvision's Resize(size) and CenterCrop(size) give on a PIL image, written with Pillow alone."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    w, h = image.size
    size = (width, int(width * h / w)) if width * h >= height * w else (int(height * w / h), height)
    left, top = round((size[0] - width) / 2.0), round((size[1] - height) / 2.0)
    resized = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + width, top + height)))


def tree_bytes(root: Path) -> dict[str, bytes]:
    """Every file below root by its relative path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
