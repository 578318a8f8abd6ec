"""Draws a small ImageNet to try things on: its folders, sizes, bytes and oddities, with invented pictures."""

from __future__ import annotations

import errno
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageColor, ImageDraw, ImageFilter

from decodeonce.errors import DecodeonceError
from decodeonce.prep.processes.child import ChildDied, Parent
from decodeonce.prep.processes.workers import run_workers
from decodeonce.store import disk
from decodeonce.store.durable import append, make_folder

Rng = np.random.Generator
Size = tuple[int, int]  # width, height in pixels
Look = tuple[str, str, str, str]  # pattern, colour, noun, setting: what the pictures of a class have in common
CUT_FROM = 1000  # a cut one among fewer is more than the 0.1 % that `prep build` lets pass
Job = tuple[int, str, Look, str]  # index, path under train/, look, how it is odd ("" if it is not)
Take = Callable[[tuple[int, int]], None]  # gets a picture's bytes and its pixels
_LINEAR = Image.Resampling.BILINEAR
_TILE = 1024
_CIRCLE = np.array([(math.cos(k * math.pi / 20), math.sin(k * math.pi / 20)) for k in range(40)])


@dataclass(frozen=True)
class SampleTree:
    """What was written: `bytes` of the picture files, `pixels` as width times height over all of them."""

    images: int
    classes: int
    bytes: int
    pixels: int


# fmt: off
# Weight in 200, least and largest width, least and largest height, after a count of 200 pictures of ImageNet.
_SIZES = (
    (42, 500, 500, 375, 375), (34, 500, 500, 333, 334), (24, 500, 500, 281, 480), (10, 375, 375, 500, 500),
    (10, 333, 335, 500, 500), (12, 300, 446, 500, 500), (24, 150, 330, 150, 330), (16, 350, 480, 240, 480),
    (6, 640, 640, 480, 480), (12, 530, 700, 370, 600), (4, 800, 800, 530, 600), (2, 800, 800, 600, 1000),
    (2, 1024, 1024, 768, 768), (1, 1200, 1200, 900, 900), (1, 1200, 1600, 1200, 1200),
)
# Weight in 100, JPEG quality, 0 for 4:4:4 or 2 for 4:2:0, gain of the texture. Two of three pictures of ImageNet are
# quality 96 at 4:4:4, 0.73 bytes a pixel (0.71 here); the others are as they came from the web, 0.15 to 0.6.
_ENCODINGS = ((65, 96, 0, 1.6), (4, 93, 0, 1.5), (8, 82, 0, 1.5), (12, 90, 2, 1.4), (11, 74, 2, 1.4))
# Parts from back to front: b(ody, in the pattern of the class), a(ccent, in its second colour), d(ark) or l(ight), then
# the x and y of a polygon, or of an oval its centre and radii; 100 is the scale of the object, y grows downwards.
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
# Roughness up to 127, waves along and across, how noise bends them, how sharp, how much of the second colour.
_PATTERNS = {
    "plain": (30, 0, 0, 0.5, 0.6, -0.8), "striped": (60, 1, 0, 0.7, 1.6, 0.3), "spotted": (45, 1, 1, 0.0, 2.4, -0.3),
    "checked": (25, 1, 1, 0.3, 4.0, 0.1), "marbled": (85, 0, 0, 3.0, 0.9, 0.2), "wavy": (35, 1, 0, 2.0, 1.6, 0.3),
}
_COLOURS = {  # the second is the accent
    "crimson": "bisque", "orange": "saddlebrown", "goldenrod": "maroon", "olive": "khaki", "teal": "honeydew",
    "royalblue": "aliceblue", "indigo": "plum", "hotpink": "purple", "sienna": "wheat", "silver": "slategray",
}
# From the top of the sky to the near ground; roughness of sky and of ground; how hilly; then the blurred things behind
# the objects (bushes, stones, lamps): how many and in which colours.
_SETTINGS = {
    "meadow": ("cornflowerblue lightblue olivedrab darkolivegreen", (5, 95), 0.05, 9, "darkolivegreen olivedrab khaki"),
    "shore": ("skyblue steelblue wheat tan", (15, 60), 0.0, 6, "gray dimgray linen"),
    "forest": ("darkolivegreen olivedrab saddlebrown black", (60, 105), 0.04, 45, "darkseagreen darkgreen olivedrab"),
    "studio": ("silver whitesmoke whitesmoke silver", (4, 8), 0.0, 0, "white"),
    "dusk": ("darkslateblue sandybrown dimgray #201a20", (9, 70), 0.08, 10, "black darkslategray"),
    "alpine": ("steelblue lightsteelblue slategray ghostwhite", (6, 75), 0.14, 14, "darkslategray gray white"),
    "night": ("black midnightblue dimgray black", (25, 65), 0.02, 25, "orange tomato cornflowerblue cornsilk"),
}
# fmt: on


def write_sample_tree(
    dest: Path,
    *,
    count: int = 3000,
    classes: int = 30,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> SampleTree:
    """Write `count` pictures as DEST/train/<wnid>/<wnid>_<number>.JPEG, and DEST/LOC_synset_mapping.txt.

    Odd files as in ImageNet: 2 % grey JPEGs, one CMYK JPEG, one PNG named .JPEG; from 1,000 pictures on, one JPEG cut
    at 60 %. The bytes follow from the arguments and the library versions, not from `workers`. `progress` gets the
    number of pictures written since its last call. ValueError for numbers that cannot be; FileExistsError if `dest`
    holds anything.
    """
    _check(dest, count, classes)
    rng = np.random.default_rng([seed, count])  # that of a picture has [seed, index]
    looks = _looks(rng, classes)
    for wnid in looks:
        make_folder(dest / "train" / wnid)
    lines = [f"{wnid} {' '.join(look[:3])}, {look[3]} {look[2]}\n" for wnid, look in looks.items()]
    _write(dest / "LOC_synset_mapping.txt", "".join(lines).encode())
    done: list[tuple[int, int]] = []

    def take(picture: tuple[int, int]) -> None:
        done.append(picture)
        if progress is not None:
            progress(1)

    _write_pictures(dest / "train", seed, _jobs(rng, looks, count), workers, take)
    written, pixels = map(sum, zip(*done, strict=True))
    return SampleTree(count, classes, written, pixels)


def _check(dest: Path, count: int, classes: int) -> None:
    if count < 50:
        raise ValueError(f"count is {count}, the least is 50: every tree holds one of each odd file")
    if not 1 <= classes <= min(1000, count):
        raise ValueError(f"classes is {classes}, expected 1 to {min(1000, count)} (no more than 1000, nor than count)")
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise FileExistsError(errno.EEXIST, "exists and is not an empty folder; name a new one", str(dest))


def _looks(rng: Rng, classes: int) -> dict[str, Look]:
    """The look of each wnid; no two are the same."""
    looks = list(product(_PATTERNS, _COLOURS, _SHAPES, _SETTINGS))
    numbers = 1_440_000 + np.cumsum(rng.integers(1, 13_000, classes))
    picked = rng.choice(len(looks), classes, replace=False)
    return {f"n{number:08d}": looks[i] for number, i in zip(numbers, picked, strict=True)}


def _jobs(rng: Rng, looks: dict[str, Look], count: int) -> list[Job]:
    share = rng.uniform(0.6, 1.0, len(looks))
    sizes = 1 + rng.multinomial(count - len(looks), share / share.sum())
    indices = rng.choice(count, 3 + max(1, round(count * 0.02)), replace=False).tolist()
    odd = dict.fromkeys(indices, "grey") | dict(zip(indices, _odd_kinds(count), strict=False))
    sized = zip(looks.items(), sizes, strict=True)
    named = [(f"{wnid}/{wnid}_{13 * k + 7}.JPEG", look) for (wnid, look), size in sized for k in range(size)]
    return [(index, path, look, odd.get(index, "")) for index, (path, look) in enumerate(named)]


def _write_pictures(train: Path, seed: int, jobs: list[Job], workers: int, take: Take) -> None:
    if workers == 1:
        for job in jobs:
            take(_write_picture(train, seed, job))
        return
    try:
        run_workers(__name__, workers, [str(train.absolute()), seed], iter(jobs), take)
    except ChildDied as died:
        raise DecodeonceError(f"{train.parent}: {died}; see above; remove it and run the same command again") from None


def main(arguments: list[str]) -> int:
    """Write the images that a parent orders; tell of each."""
    with Parent(arguments) as parent:
        train, seed = parent.receive()
        for job in parent.orders():
            parent.report(_write_picture(Path(train), seed, job))
    return 0


def _odd_kinds(count: int) -> tuple[str, ...]:
    """The kinds of which there is one file each."""
    return ("cmyk", "png", "cut" if count >= CUT_FROM else "")


def _write_picture(train: Path, seed: int, job: Job) -> tuple[int, int]:
    """Write one picture; returns its bytes and its pixels."""
    index, path, look, odd = job
    rng = np.random.default_rng([seed, index])
    # ranks a golden ratio apart cover the sizes evenly: any 300 pictures have the mean of all within 3 %
    rank = (seed % 1000 + index) * (math.sqrt(5) - 1) / 2 % 1
    _, narrow, wide, low, high = np.repeat(_SIZES, [row[0] for row in _SIZES], axis=0)[int(rank * 200)]
    size = (int(rng.integers(narrow, wide + 1)), int(rng.integers(low, high + 1)))
    _, quality, chroma, gain = _ENCODINGS[rng.choice(len(_ENCODINGS), p=[row[0] / 100 for row in _ENCODINGS])]
    picture = _textured(rng, *_scene(rng, look, size), size, gain * rng.lognormal(0, 0.45))
    data = _encoded(picture, quality, chroma, odd)
    _write(train / path, data)
    return len(data), size[0] * size[1]


def _write(path: Path, data: bytes) -> None:
    fd = disk.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        append(fd, data)
    finally:
        os.close(fd)


def _encoded(picture: Image.Image, quality: int, chroma: int, odd: str) -> bytes:
    """The bytes of the file of a picture, which comes as YCbCr; an odd one is 4:4:4."""
    for mode in {"grey": ("L",), "cmyk": ("RGB", "CMYK"), "png": ("RGB",)}.get(odd, ()):
        picture = picture.convert(mode)
    file = io.BytesIO()
    picture.save(file, "PNG" if odd == "png" else "JPEG", quality=quality, subsampling=0 if odd else chroma)
    data = file.getvalue()
    return data[: len(data) * 6 // 10] if odd == "cut" else data


def _scene(rng: Rng, look: Look, full: Size) -> tuple[Image.Image, list[Image.Image]]:
    """A picture at 5/8 of its size (softens edges as a lens does), and the roughness of its ground and its objects."""
    size = (full[0] * 5 // 8, full[1] * 5 // 8)
    pattern, colour, noun, place = look
    scene, rough = _background(rng, place, size)
    parts = _arranged(rng, noun, size)
    tints = np.clip(_rgb(f"{colour} {_COLOURS[colour]}") + rng.normal(0, 12, (2, 3)), 0, 255)
    main, second = (Image.new("RGB", size, (int(r), int(g), int(b))) for r, g, b in tints)
    fills: list[Image.Image | str] = [Image.composite(second, main, _pattern(rng, pattern, size)), second]
    for number, fill in enumerate([*fills, "#1c181a", "#ece8e0"], 1):
        scene.paste(fill, mask=parts.point([255 * (level == number) for level in range(256)]))
    mask = parts.point([255 * (level > 0) for level in range(256)])
    lit = ImageChops.multiply(scene, Image.merge("RGB", [_shade(rng, mask)] * 3))
    return lit, [ImageChops.subtract(rough, mask), mask.point(lambda level: level * _PATTERNS[pattern][0] // 255)]


def _arranged(rng: Rng, noun: str, size: Size) -> Image.Image:
    """One to four of a shape, the smaller behind: L with 0 for the background, else 1 + the place in "badl"."""
    parts = Image.new("L", size)
    poses = 1 + int(rng.choice(4, p=(0.6, 0.2, 0.1, 0.1)))
    scales = np.sort(rng.uniform(0.25, 0.46, poses)) * min(size) / poses**0.6 / 100
    for scale, slot in zip(scales, rng.permutation(poses), strict=True):
        centre = size * np.array([(slot + rng.normal(0.5, 0.1)) / poses, rng.normal(0.55, 0.09 + 0.03 * poses)])
        angle, mirror = rng.normal(0, 0.2), rng.choice((-1, 1))
        turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) * [[mirror], [1]]
        for part in _SHAPES[noun].split("/"):
            kind, *numbers = part.split()
            points = np.array(numbers, np.float64).reshape(-1, 2)
            outline = points if len(points) > 2 else points[0] + points[1] * _CIRCLE
            ImageDraw.Draw(parts).polygon((outline @ turn + centre).ravel().tolist(), fill=1 + "badl".index(kind))
    return parts


def _background(rng: Rng, place: str, size: Size) -> tuple[Image.Image, Image.Image]:
    """Sky or wall above the ground (RGB; drawn at a quarter, so out of focus), and how rough they are (L)."""
    colours, (smooth, coarse), hilly, things, tints = _SETTINGS[place]
    width, height = size[0] // 4 + 1, size[1] // 4 + 1
    y = np.linspace(0, 1, height)[:, None, None]
    horizon = rng.uniform(0.3, 0.65)
    knots = rng.normal(horizon, hilly, 9)
    ridge = np.interp(np.linspace(0, 8, width), range(9), knots) + hilly / 120 * _noise(rng, 1.5, (width, 1))[0]
    below = y - ridge[:, None]
    land, depth = np.clip(below * 30 + 0.5, 0, 1), np.clip(below * 2, 0, 1)
    top, haze, far, near = _rgb(colours) + rng.normal(0, 7, (4, 3)) + rng.normal(0, 9, 3)
    sky = haze + (top - haze) * np.clip(-below * 2, 0, 1)
    rough = smooth + (coarse - smooth) * land * (0.4 + 0.6 * depth)
    clouds = _noise(rng, 1.5, (width, height))[..., None] * (0.3 + rough / 90)
    small = _image(sky + (far + (near - far) * depth - sky) * land + clouds)
    for tint in rng.choice(tints.split(), things):
        x, up = width * rng.random(), height * rng.normal(horizon + 0.08, things / 100)
        radius = width * rng.gamma(4, 0.008)
        ImageDraw.Draw(small).ellipse((x - radius, up - radius, x + radius, up + radius), fill=str(tint))
    return small.filter(ImageFilter.BoxBlur(0.7)).resize(size), _image(rough[..., 0]).resize(size)


def _pattern(rng: Rng, name: str, size: Size) -> Image.Image:
    """How much there is of the second colour at each place (L)."""
    _, along, across, bend, sharp, bias = _PATTERNS[name]
    wave = np.exp(1j * rng.uniform(0, np.pi)) * 2 * np.pi / (min(size) * rng.uniform(0.07, 0.13))
    x, y = np.arange(size[0], dtype=np.float32), np.arange(size[1], dtype=np.float32)[:, None]
    u, v = (np.float32(turned.real) * x + np.float32(turned.imag) * y for turned in (along * wave, across * wave * 1j))
    field = np.cos(u + _noise(rng, 1.5, size) * np.float32(bend / 24)) * np.cos(v) + np.float32(bias)
    return _image(np.clip(field * np.float32(sharp), 0, 0.92) * 255)


def _shade(rng: Rng, mask: Image.Image) -> Image.Image:
    """The light on a scene (L): falls off from one place, rounds the objects of the mask and has them drop shadows."""
    solid = np.asarray(mask.reduce(4).filter(ImageFilter.BoxBlur(2)), np.float32) / 255
    height, width = solid.shape
    at_x, at_y = rng.uniform(-0.7, 0.7), rng.uniform(-0.8, 0.2)
    falls = (np.linspace(-1, 1, width) - at_x) ** 2 + (np.linspace(-1, 1, height)[:, None] - at_y) ** 2
    step = max(2, width // 24)
    left, right = (0, 2 * step) if at_x < 0 else (2 * step, 0)
    around = np.pad(solid, step)
    lightwards, away = around[:height, left : left + width], around[2 * step :, right : right + width]
    light = 1.06 - rng.uniform(0.05, 0.18) * falls
    light *= (1 - 0.4 * solid * (1 - away)) * (1 - 0.45 * lightwards * (1 - solid))
    return _image(light * 255).resize(mask.size, _LINEAR)


def _textured(rng: Rng, scene: Image.Image, roughs: list[Image.Image], size: Size, gain: float) -> Image.Image:
    """The scene at full size (YCbCr), with the fine texture of its parts and with sensor grain."""
    detail = _noise(rng, 0.1, size) * np.int16(rng.integers(5, 22))
    for rough, slope in zip(roughs, (0.65, 0.6), strict=True):
        amount = rough.point([min(127, round(level * gain)) for level in range(256)]).resize(size, _LINEAR)
        detail += _noise(rng, slope, size) * np.asarray(amount)
    luma, *chroma = (np.asarray(plane) for plane in scene.resize(size).convert("YCbCr").split())
    detail >>= 7
    detail *= (luma >> 2) + np.uint8(20)  # less in the dark
    detail >>= 6
    hues = rng.permutation(np.array([4, -3], np.int16))
    planes = [luma + detail, *(plane + (detail * hue >> 4) for plane, hue in zip(chroma, hues, strict=True))]
    return Image.merge("YCbCr", [_image(plane) for plane in planes])


def _rgb(names: str) -> NDArray[np.float64]:
    return np.array([ImageColor.getrgb(name) for name in names.split()], np.float64)


def _image(values: NDArray[Any]) -> Image.Image:
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def _noise(rng: Rng, slope: float, size: Size) -> NDArray[np.int16]:
    """A random window of noise of amplitude 1/f**slope: deviation 24, at most 100 (100 * 2 * 127 fits int16)."""
    top, left = rng.integers(0, [min(_TILE, 2 * _TILE - extent) for extent in reversed(size)])
    return _tile(slope)[top : top + size[1], left : left + size[0]]


@lru_cache(maxsize=8)
def _tile(slope: float) -> NDArray[np.int16]:
    """Four times the same square of noise, twice as long down as across, which repeats without seams."""
    radius = np.hypot(2 * np.fft.fftfreq(_TILE)[:, None], np.fft.rfftfreq(_TILE))
    radius[0, 0] = np.inf
    white = np.random.default_rng(_TILE).standard_normal((_TILE, _TILE))
    noise = np.fft.irfft2(np.fft.rfft2(white) / radius**slope)
    return np.tile(np.clip(noise * (24 / noise.std()), -100, 100).astype(np.int16), (2, 2))
