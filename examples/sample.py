"""Draw a small synthetic ImageNet to try the commands on: `python examples/sample.py DEST [--count 3000]`.

It has ImageNet's folders, sizes and unusual files. The images cost as much to decode as photographs. From 1,000 images
on, one is damaged.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":  # before the imports: Ctrl-C ends this without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import io
import math
import os
import shutil
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw
from tqdm import tqdm

Rng = np.random.Generator
Values = np.ndarray  # float
Size = tuple[int, int]  # width, height in pixels
Look = tuple[str, str, str, str]  # pattern, color, noun, setting: what the images of a class have in common
Order = tuple[int, str, Look, str]  # index, path under train/, look, kind of unusual file ("" if ordinary)
MIN_COUNT_FOR_CUT = 1000  # smaller trees have no damaged image, so that their builds reject nothing
_TILE = 1024
_CIRCLE = np.array([(math.cos(k * math.pi / 20), math.sin(k * math.pi / 20)) for k in range(40)])
_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))  # the file explains them
_SIZES, _ENCODINGS, _SHAPES = _TABLES["sizes"], _TABLES["encodings"], _TABLES["shapes"]
_PATTERNS, _COLORS, _SETTINGS = _TABLES["patterns"], _TABLES["colors"], _TABLES["settings"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=Path, help="folder to create")
    parser.add_argument("--count", type=int, default=3000, help="images, at least 50 (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=30, help="class folders, up to 1000 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="draw other images (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="threads (default: cores)")
    options = parser.parse_args()
    count, classes = options.count, options.classes
    if count < 50 or not 1 <= classes <= min(count, 1000):
        parser.error(
            f"--count is {count}, expected at least 50; --classes is {classes}, expected 1 to {min(count, 1000)}"
        )
    try:
        nbytes, pixels = write_sample_tree(**vars(options))
    except OSError as error:
        sys.exit(f"sample: error: {error}")
    size = f"{nbytes / count / 1e3:.0f} KB and {pixels / count:,.0f} pixels each on average"
    print(f"{options.dest}: {count:,} images in {classes:,} classes, {size}")


def write_sample_tree(
    dest: Path, *, count: int = 3000, classes: int = 30, seed: int = 0, workers: int = 1
) -> tuple[int, int]:
    """Write synthetic images as DEST/train/<wnid>/<wnid>_<number>.JPEG, and DEST/LOC_synset_mapping.txt.

    Unusual files are as in ImageNet: 2 % gray JPEGs, one CMYK JPEG and one PNG named .JPEG. From 1,000 images on, one
    JPEG is truncated at 60 %. The bytes depend on the arguments and the library versions, but not on `workers`.

    Args:
        dest: Folder to create; it must not exist or be empty. Until the tree is complete, it is called DEST.tmp.
        count: Number of images, at least 50, because every tree has one of each unusual file.
        classes: Number of classes, 1 to 1000, at most `count`.
        seed: Seed of the random numbers.
        workers: Number of threads.

    Returns:
        The total size of the images in bytes, and their total number of pixels.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise FileExistsError(f"{dest}: exists and is not an empty folder; choose a new one")
    unfinished = dest.with_name(f"{dest.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    rng = np.random.default_rng([seed, count])  # images use [seed, index]
    looks = _looks(rng, classes)
    for wnid in looks:
        (unfinished / "train" / wnid).mkdir(parents=True)
    lines = [f"{wnid} {' '.join(look[:3])}, {look[3]} {look[2]}\n" for wnid, look in looks.items()]
    (unfinished / "LOC_synset_mapping.txt").write_text("".join(lines))
    with ThreadPoolExecutor(workers) as threads:
        images = threads.map(partial(_write_image, unfinished / "train", seed), _orders(rng, looks, count))
        done = list(tqdm(images, total=count, unit=" images", disable=None))
    unfinished.rename(dest)
    return sum(nbytes for nbytes, _ in done), sum(pixels for _, pixels in done)


def _looks(rng: Rng, classes: int) -> dict[str, Look]:
    """Return a different look for each wnid."""
    looks = list(product(_PATTERNS, _COLORS, _SHAPES, _SETTINGS))
    numbers = 1_440_000 + np.cumsum(rng.integers(1, 13_000, classes))
    picked = rng.choice(len(looks), classes, replace=False)
    return {f"n{number:08d}": looks[i] for number, i in zip(numbers, picked, strict=True)}


def _orders(rng: Rng, looks: dict[str, Look], count: int) -> list[Order]:
    share = rng.uniform(0.6, 1.0, len(looks))
    sizes = 1 + rng.multinomial(count - len(looks), share / share.sum())
    kinds = ["cmyk", "png", "cut" if count >= MIN_COUNT_FOR_CUT else ""] + ["gray"] * max(1, round(count * 0.02))
    unusual = dict(zip(rng.choice(count, len(kinds), replace=False).tolist(), kinds, strict=True))
    sized = zip(looks.items(), sizes, strict=True)
    named = [(f"{wnid}/{wnid}_{13 * k + 7}.JPEG", look) for (wnid, look), size in sized for k in range(size)]
    return [(index, path, look, unusual.get(index, "")) for index, (path, look) in enumerate(named)]


def _write_image(train: Path, seed: int, order: Order) -> tuple[int, int]:
    """Write one image; return its size in bytes and in pixels. Unusual files are 4:4:4."""
    index, path, look, unusual = order
    rng = np.random.default_rng([seed, index])
    # Ranks a golden ratio apart cover the sizes evenly: the mean of any 300 images is within 3 % of the overall mean.
    rank = (seed % 1000 + index) * (math.sqrt(5) - 1) / 2 % 1
    _, narrow, wide, low, high = np.repeat(_SIZES, [row[0] for row in _SIZES], axis=0)[int(rank * 200)]
    size = (int(rng.integers(narrow, wide + 1)), int(rng.integers(low, high + 1)))
    _, quality, chroma, gain = _ENCODINGS[rng.choice(len(_ENCODINGS), p=[row[0] / 100 for row in _ENCODINGS])]
    image, file = _picture(rng, look, size, gain * rng.lognormal(0, 0.45)), io.BytesIO()
    image = image.convert({"gray": "L", "cmyk": "CMYK"}.get(unusual, "RGB"))
    image.save(file, "PNG" if unusual == "png" else "JPEG", quality=quality, subsampling=0 if unusual else chroma)
    data = file.getvalue()
    data = data[: len(data) * 6 // 10] if unusual == "cut" else data
    (train / path).write_bytes(data)
    return len(data), size[0] * size[1]


def _picture(rng: Rng, look: Look, full: Size, gain: float) -> Image.Image:
    """Draw an object in a setting at 5/8 of the size, which softens edges like a lens; then add texture and grain."""
    pattern, color, noun, place = look
    size = (full[0] * 5 // 8, full[1] * 5 // 8)
    scene, rough = _background(rng, place, size)
    parts = _object(rng, noun, size)
    palette = _rgb(f"black {color} {_COLORS[color]} #1c181a #ece8e0") + rng.normal(0, 12, (5, 3))
    fill = palette[parts] + (parts == 1)[..., None] * (palette[2] - palette[1]) * _pattern(rng, pattern, size)
    solid = (parts > 0)[..., None]
    scene = np.where(solid, fill, scene)
    rough = np.where(solid, _PATTERNS[pattern][0], rough) * gain
    pixels, rough = _resized(scene, full), _resized(rough, full)
    texture = _noise(rng, 0.6, full) * rough / 6.5 + _noise(rng, 0.1, full) * rng.uniform(1, 4)
    texture *= 0.3 + pixels.mean(axis=2, keepdims=True) / 160  # less in the dark
    return Image.fromarray(_bytes(pixels + texture * (1 + rng.normal(0, 0.06, 3))))


def _background(rng: Rng, place: str, size: Size) -> tuple[Values, Values]:
    """Draw sky or wall above the ground; return colors (H, W, 3) and roughness (H, W, 1)."""
    colors, smooth, coarse = _SETTINGS[place]
    below = np.linspace(0, 1, size[1])[:, None, None] - rng.uniform(0.3, 0.65)
    depth, land = np.clip(below * 2, 0, 1), np.clip(below * 30 + 0.5, 0, 1)
    top, haze, far, near = _rgb(colors) + rng.normal(0, 7, (4, 3)) + rng.normal(0, 9, 3)
    sky, ground = haze + (top - haze) * np.clip(-below * 2, 0, 1), far + (near - far) * depth
    rough = smooth + (coarse - smooth) * land * (0.4 + 0.6 * depth)
    return sky + (ground - sky) * land + _noise(rng, 1.5, size) * (8 + rough / 4), rough


def _object(rng: Rng, noun: str, size: Size) -> NDArray[np.uint8]:
    """Draw a shape. Pixels are 0, or 1 + index in "badl"."""
    parts, scale = Image.new("L", size), rng.uniform(0.25, 0.46) * min(size) / 100
    center = size * rng.normal(0.5, 0.1, 2)
    angle, mirror = rng.normal(0, 0.2), rng.choice((-1, 1))
    turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) * [[mirror], [1]]
    for part in _SHAPES[noun].split("/"):
        kind, *numbers = part.split()
        points = np.array(numbers, float).reshape(-1, 2)
        outline = points if len(points) > 2 else points[0] + points[1] * _CIRCLE
        ImageDraw.Draw(parts).polygon((outline @ turn + center).ravel().tolist(), fill=1 + "badl".index(kind))
    return np.asarray(parts)


def _pattern(rng: Rng, name: str, size: Size) -> Values:
    """Return the amount of the second color at each pixel, (H, W, 1)."""
    _, along, across, bend, sharp, bias = _PATTERNS[name]
    wave = np.exp(1j * rng.uniform(0, np.pi)) * 2 * np.pi / (min(size) * rng.uniform(0.07, 0.13))
    x, y = np.arange(size[0])[:, None], np.arange(size[1])[:, None, None]
    u, v = (turned.real * x + turned.imag * y for turned in (along * wave, across * wave * 1j))
    amount: Values = np.clip((np.cos(u + _noise(rng, 1.5, size) * bend) * np.cos(v) + bias) * sharp, 0, 0.92)
    return amount


def _rgb(names: str) -> Values:
    return np.array([ImageColor.getrgb(name) for name in names.split()], np.float64)


def _bytes(values: Values) -> NDArray[np.uint8]:
    clipped: NDArray[np.uint8] = np.clip(values, 0, 255).astype(np.uint8)
    return clipped


def _resized(values: Values, size: Size) -> Values:
    """Return values from 0 to 255, (H, W, C), at another size."""
    image = Image.fromarray(_bytes(values).squeeze()).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image, np.float32).reshape(size[1], size[0], -1)


def _noise(rng: Rng, slope: float, size: Size) -> Values:
    """Return a random window of 1/f**slope noise with standard deviation 1, (H, W, 1)."""
    top, left = rng.integers(0, _TILE, 2)
    rows, columns = (top + np.arange(size[1])) % _TILE, (left + np.arange(size[0])) % _TILE
    window: Values = _tile(slope)[np.ix_(rows, columns)]
    return window[..., None]


@lru_cache(maxsize=8)
def _tile(slope: float) -> Values:
    """Return a square of seamless noise; its features are twice as high as wide."""
    radius = np.hypot(2 * np.fft.fftfreq(_TILE)[:, None], np.fft.rfftfreq(_TILE))
    radius[0, 0] = np.inf
    white = np.random.default_rng(_TILE).standard_normal((_TILE, _TILE))
    noise = np.fft.irfft2(np.fft.rfft2(white) / radius**slope)
    tile: Values = (noise / noise.std()).astype(np.float32)
    return tile


if __name__ == "__main__":
    main()
