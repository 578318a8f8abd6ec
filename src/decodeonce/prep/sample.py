"""Draw a small synthetic ImageNet for trying things out, with ImageNet's folders, sizes and unusual files."""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from decodeonce.store import disk
from decodeonce.store.files import append, make_folder

Rng = np.random.Generator
Values = np.ndarray  # float
Size = tuple[int, int]  # width, height in pixels
Look = tuple[str, str, str, str]  # pattern, color, noun, setting: what the images of a class have in common
Order = tuple[int, str, Look, str]  # index, path under train/, look, kind of unusual file ("" if ordinary)
MIN_COUNT_FOR_CUT = 1000  # smaller trees have no damaged image, so that their builds reject nothing
_TILE = 1024
_CIRCLE = np.array([(math.cos(k * math.pi / 20), math.sin(k * math.pi / 20)) for k in range(40)])


# fmt: off
# Weight out of 200, smallest and largest width, smallest and largest height, from 200 images of ImageNet.
_SIZES = (
    (42, 500, 500, 375, 375), (34, 500, 500, 333, 334), (24, 500, 500, 281, 480), (10, 375, 375, 500, 500),
    (10, 333, 335, 500, 500), (12, 300, 446, 500, 500), (24, 150, 330, 150, 330), (16, 350, 480, 240, 480),
    (6, 640, 640, 480, 480), (12, 530, 700, 370, 600), (4, 800, 800, 530, 600), (2, 800, 800, 600, 1000),
    (2, 1024, 1024, 768, 768), (1, 1200, 1200, 900, 900), (1, 1200, 1600, 1200, 1200),
)
# Weight out of 100, JPEG quality, 0 for 4:4:4 or 2 for 4:2:0, gain of the texture. Two thirds of ImageNet have quality
# 96 at 4:4:4 and 0.73 bytes per pixel (0.71 here). The others are as they came from the web, 0.15 to 0.6.
_ENCODINGS = ((65, 96, 0, 1.6), (4, 93, 0, 1.5), (8, 82, 0, 1.5), (12, 90, 2, 1.4), (11, 74, 2, 1.4))
# Parts from back to front. Each begins with b (body, in the pattern of the class), a (accent, in its second color), d
# (dark) or l (light). Then follow x and y of a polygon, or center and radii of an oval. 100 is the scale of the object;
# y grows downwards.
_SHAPES = {
    "fish": "a 50 0 100 -50 85 0 100 50/a -30 -30 10 -75 40 -20/b -15 0 80 45/l -60 -10 10 10/d -61 -10 5 5",
    "flower": "b 62 0 36 36/b 31 54 36 36/b -31 54 36 36/b -62 0 36 36/b -31 -54 36 36/b 31 -54 36 36/"
              "a 0 0 40 40/d 0 0 15 15",
    "mushroom": "l -20 -10 20 -10 30 100 -30 100/d 0 -2 90 16/b -95 0 -80 -50 -50 -80 0 -90 50 -80 80 -50 95 0",
    "beetle": "d -90 -70 0 -27 90 -70 0 -17/d -95 0 0 0 95 0 0 8/d -90 80 0 35 90 80 0 45/"
              "a 0 -70 32 28/b 0 10 60 75/d 0 10 3 75",
    "house": "b -80 -20 80 -20 80 90 -80 90/a -100 -15 0 -100 100 -15/d -15 30 20 30 20 90 -15 90/"
             "l -60 5 -30 5 -30 40 -60 40/l 35 5 65 5 65 40 35 40",
    "bird": "d 5 40 10 100 15 40/d 20 40 25 100 30 40/a 40 0 100 -25 95 10/a -70 -50 -100 -35 -70 -30/b 10 10 60 42/"
            "b -45 -40 30 28/a -5 -5 75 10 20 35/d -53 -45 6 6",
    "car": "b -100 40 -95 0 -50 -8 -25 -45 40 -45 65 -5 100 5 100 40/l -38 -8 -20 -36 5 -36 5 -8/"
           "l 12 -8 12 -36 35 -36 50 -8/d -55 40 24 24/d 55 40 24 24/l -55 40 10 10/l 55 40 10 10",
    "balloon": "d -45 20 -15 75 15 75 45 20/b 0 -25 70 72/a -18 70 18 70 15 98 -15 98",
}
# Roughness up to 127, waves along and across, bending by noise, sharpness, amount of the second color.
_PATTERNS = {
    "plain": (30, 0, 0, 0.5, 0.6, -0.8), "striped": (60, 1, 0, 0.7, 1.6, 0.3), "spotted": (45, 1, 1, 0.0, 2.4, -0.3),
    "checked": (25, 1, 1, 0.3, 4.0, 0.1), "marbled": (85, 0, 0, 3.0, 0.9, 0.2), "wavy": (35, 1, 0, 2.0, 1.6, 0.3),
}
_COLOURS = {  # the second is the accent
    "crimson": "bisque", "orange": "saddlebrown", "goldenrod": "maroon", "olive": "khaki", "teal": "honeydew",
    "royalblue": "aliceblue", "indigo": "plum", "hotpink": "purple", "sienna": "wheat", "silver": "slategray",
}
# Colors from the top of the sky to the near ground, roughness of sky and of ground.
_SETTINGS = {
    "meadow": ("cornflowerblue lightblue olivedrab darkolivegreen", 5, 95),
    "shore": ("skyblue steelblue wheat tan", 15, 60),
    "forest": ("darkolivegreen olivedrab saddlebrown black", 60, 105),
    "studio": ("silver whitesmoke whitesmoke silver", 4, 8),
    "dusk": ("darkslateblue sandybrown dimgray #201a20", 9, 70),
    "alpine": ("steelblue lightsteelblue slategray ghostwhite", 6, 75),
    "night": ("black midnightblue dimgray black", 25, 65),
}
# fmt: on


def write_sample_tree(
    dest: Path,
    *,
    count: int = 3000,
    classes: int = 30,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] = lambda images: None,
) -> tuple[int, int]:
    """Write synthetic images as DEST/train/<wnid>/<wnid>_<number>.JPEG, and DEST/LOC_synset_mapping.txt.

    Unusual files are as in ImageNet: 2 % grey JPEGs, one CMYK JPEG and one PNG named .JPEG. From 1,000 images on, one
    JPEG is truncated at 60 %. The bytes depend on the arguments and the library versions, but not on `workers`.

    Args:
        dest: Folder to create; it must not exist or be empty.
        count: Number of images, at least 50, because every tree has one of each unusual file.
        classes: Number of classes, 1 to 1000, at most `count`.
        seed: Seed of the random numbers.
        workers: Number of threads.
        progress: Called with the number of images written since its last call.

    Returns:
        The total size of the images in bytes, and their total number of pixels.

    Raises:
        FileExistsError: If `dest` is not an empty folder.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise FileExistsError(errno.EEXIST, "exists and is not an empty folder; choose a new one", str(dest))
    rng = np.random.default_rng([seed, count])  # images use [seed, index]
    looks = _looks(rng, classes)
    for wnid in looks:
        make_folder(dest / "train" / wnid)
    lines = [f"{wnid} {' '.join(look[:3])}, {look[3]} {look[2]}\n" for wnid, look in looks.items()]
    _write(dest / "LOC_synset_mapping.txt", "".join(lines).encode())
    done: list[tuple[int, int]] = []
    with ThreadPoolExecutor(workers) as threads:
        for image in threads.map(partial(_write_image, dest / "train", seed), _orders(rng, looks, count)):
            done.append(image)
            progress(1)
    return sum(nbytes for nbytes, _ in done), sum(pixels for _, pixels in done)


def _looks(rng: Rng, classes: int) -> dict[str, Look]:
    """Return a different look for each wnid."""
    looks = list(product(_PATTERNS, _COLOURS, _SHAPES, _SETTINGS))
    numbers = 1_440_000 + np.cumsum(rng.integers(1, 13_000, classes))
    picked = rng.choice(len(looks), classes, replace=False)
    return {f"n{number:08d}": looks[i] for number, i in zip(numbers, picked, strict=True)}


def _orders(rng: Rng, looks: dict[str, Look], count: int) -> list[Order]:
    share = rng.uniform(0.6, 1.0, len(looks))
    sizes = 1 + rng.multinomial(count - len(looks), share / share.sum())
    kinds = ["cmyk", "png", "cut" if count >= MIN_COUNT_FOR_CUT else ""] + ["grey"] * max(1, round(count * 0.02))
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
    image = image.convert({"grey": "L", "cmyk": "CMYK"}.get(unusual, "RGB"))
    image.save(file, "PNG" if unusual == "png" else "JPEG", quality=quality, subsampling=0 if unusual else chroma)
    data = file.getvalue()
    data = data[: len(data) * 6 // 10] if unusual == "cut" else data
    _write(train / path, data)
    return len(data), size[0] * size[1]


def _write(path: Path, data: bytes) -> None:
    fd = disk.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        append(fd, data)
    finally:
        disk.close(fd)


def _picture(rng: Rng, look: Look, full: Size, gain: float) -> Image.Image:
    """Draw an object in a setting at 5/8 of the size, which softens edges like a lens; then add texture and grain."""
    pattern, colour, noun, place = look
    size = (full[0] * 5 // 8, full[1] * 5 // 8)
    scene, rough = _background(rng, place, size)
    parts = _object(rng, noun, size)
    palette = _rgb(f"black {colour} {_COLOURS[colour]} #1c181a #ece8e0") + rng.normal(0, 12, (5, 3))
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
    colours, smooth, coarse = _SETTINGS[place]
    below = np.linspace(0, 1, size[1])[:, None, None] - rng.uniform(0.3, 0.65)
    depth, land = np.clip(below * 2, 0, 1), np.clip(below * 30 + 0.5, 0, 1)
    top, haze, far, near = _rgb(colours) + rng.normal(0, 7, (4, 3)) + rng.normal(0, 9, 3)
    sky, ground = haze + (top - haze) * np.clip(-below * 2, 0, 1), far + (near - far) * depth
    rough = smooth + (coarse - smooth) * land * (0.4 + 0.6 * depth)
    return sky + (ground - sky) * land + _noise(rng, 1.5, size) * (8 + rough / 4), rough


def _object(rng: Rng, noun: str, size: Size) -> NDArray[np.uint8]:
    """Draw a shape. Pixels are 0, or 1 + index in "badl"."""
    parts, scale = Image.new("L", size), rng.uniform(0.25, 0.46) * min(size) / 100
    centre = size * rng.normal(0.5, 0.1, 2)
    angle, mirror = rng.normal(0, 0.2), rng.choice((-1, 1))
    turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) * [[mirror], [1]]
    for part in _SHAPES[noun].split("/"):
        kind, *numbers = part.split()
        points = np.array(numbers, float).reshape(-1, 2)
        outline = points if len(points) > 2 else points[0] + points[1] * _CIRCLE
        ImageDraw.Draw(parts).polygon((outline @ turn + centre).ravel().tolist(), fill=1 + "badl".index(kind))
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
