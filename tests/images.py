"""Generated images for tests: they compress like photographs and are small. Some are unusual or damaged."""

import io
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

# Optional libraries of PIL, as PIL.features names them, by the start of the names of the formats that need them.
OPTIONAL_FORMATS = {"WEBP": "webp", "TIFF": "libtiff"}


def make_image(width: int, height: int, *, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Make a smooth image with some noise, in this mode."""
    rng = np.random.default_rng([seed, width, height])
    coarse = rng.integers(0, 256, (max(1, height // 16) + 1, max(1, width // 16) + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = smooth + rng.integers(-12, 13, smooth.shape, dtype=np.int16)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(mode)


def encoded(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    """Return an image as the bytes of a file. The default JPEG quality is 90."""
    out = io.BytesIO()
    image.save(out, format, **({"quality": 90} if format == "JPEG" else {}) | options)
    return out.getvalue()


def jpeg(width: int = 60, height: int = 40, *, seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    """Make the bytes of a JPEG."""
    return encoded(make_image(width, height, seed=seed, mode=mode), **options)


def exif(orientation: int) -> bytes:
    """Return EXIF data with this orientation."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def marker_at(data: bytes, marker: int) -> int:
    """Return the offset of the first segment of a JPEG with this marker (0xC0, ...), before the first scan."""
    offset = 2
    while data[offset + 1] != marker:
        offset += 2 + int.from_bytes(data[offset + 2 : offset + 4], "big")
    return offset


def replaced(data: bytes, at: int, new: bytes) -> bytes:
    """Return the bytes with those from offset `at` overwritten by `new`."""
    return data[:at] + new + data[at + len(new) :]


def without_segments(data: bytes, marker: int) -> bytes:
    """Return a JPEG without the segments of this marker before the first scan."""
    kept, offset = data[:2], 2
    while data[offset + 1] != 0xDA:
        end = offset + 2 + int.from_bytes(data[offset + 2 : offset + 4], "big")
        kept += data[offset:end] if data[offset + 1] != marker else b""
        offset = end
    return kept + data[offset:]


def segment(marker: int, content: bytes) -> bytes:
    """Return a segment of a JPEG."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def need_format(name: str) -> None:
    """Skip the test if the installed PIL was built without this format; `name` may be any text that starts with it."""
    module = next((module for start, module in OPTIONAL_FORMATS.items() if name.upper().startswith(start)), "")
    if module and not features.check(module):
        pytest.skip(f"this PIL was built without {module}")


def lossless_jpeg(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Encode (H, W, C) pixels as a lossless JPEG (SOF3, differences to the left neighbor); see ITU T.81, annex H."""
    height, width, channels = pixels.shape
    values = pixels.astype(int)
    left = np.roll(values, 1, axis=1)
    left[1:, 0] = values[:-1, 0]  # the first column is predicted from the value above
    left[0, 0] = 128
    bits = ""
    for difference in (values - left).ravel().tolist():
        size = abs(difference).bit_length()  # coded in four bits, followed by `size` bits
        code = difference if difference > 0 else difference + 2**size - 1
        bits += f"{size:04b}" + (f"{code:0{size}b}" if size else "")
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    numbers = range(1, channels + 1)
    frame = struct.pack(">BHHB", 8, height, width, channels) + b"".join(bytes((n, 0x11, 0)) for n in numbers)
    codes = bytes((0, 0, 0, 0, 9, *[0] * 12, *range(9)))
    start = bytes((channels, *(byte for n in numbers for byte in (n, 0)), 1, 0, 0))
    head = segment(0xC3, frame) + segment(0xC4, codes) + segment(0xDA, start)
    return b"\xff\xd8" + head + scan + b"\xff\xd9"


def raw_png(samples: np.ndarray[Any, Any], color_type: int, *, interlaced: bool = False) -> bytes:
    """Encode (H, W, C) samples of 8 or 16 bits as a PNG of a kind that Pillow cannot write."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [samples[top::down, left::across] for top, left, down, across in passes] if interlaced else [samples]
    wide = samples.dtype.newbyteorder(">")
    lines = b"".join(b"\0" + row.astype(wide).tobytes() for part in parts for row in part if row.size)
    size = struct.pack(">II", samples.shape[1], samples.shape[0])
    head = size + bytes((8 * samples.dtype.itemsize, color_type, 0, 0, int(interlaced)))
    return png_file((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))


def png_file(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG of these chunks, each a name and a body."""
    written = [struct.pack(">I", len(body)) + name + body + crc(name + body) for name, body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def crc(chunk: bytes) -> bytes:
    """Return the four checksum bytes at the end of a PNG chunk."""
    return struct.pack(">I", zlib.crc32(chunk))


def color_tiff(
    samples: np.ndarray[Any, Any], *, order: str = "<", planes: bool = False, **tags: tuple[int, ...]
) -> bytes:
    """Encode (H, W, C) samples of 8 or 16 bits as an RGB TIFF; further `tags` are called like _262, 259 may be 8."""
    height, width, channels = samples.shape
    wide = samples.astype(samples.dtype.newbyteorder(order))
    strips = [wide[..., one].tobytes() for one in range(channels)] if planes else [wide.tobytes()]
    common = {256: (width,), 257: (height,), 258: (8 * samples.itemsize,) * channels, 262: (2,)}
    own = {int(name[1:]): values for name, values in tags.items() if values}
    if own.get(259) == (8,):
        strips = [zlib.compress(strip) for strip in strips]
    return tiff_file(strips, common | {277: (channels,), 284: (1 + planes,)} | own, order)


def tiff_file(strips: list[bytes], tags: Mapping[int, tuple[int, ...]], order: str) -> bytes:
    """Return a TIFF of these strips, in which all values are LONG."""
    ends = np.cumsum([8, *map(len, strips)]).tolist()
    body, entries = b"".join(strips), []
    for tag, values in sorted({**tags, 273: tuple(ends[:-1]), 279: tuple(map(len, strips))}.items()):
        packed = struct.pack(f"{order}{len(values)}L", *values)
        if len(values) > 1:
            packed, body = struct.pack(f"{order}L", 8 + len(body)), body + packed
        entries.append(struct.pack(f"{order}HHL", tag, 4, len(values)) + packed)
    begin = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}L", 8 + len(body))
    return begin + body + struct.pack(f"{order}H", len(entries)) + b"".join(entries) + bytes(4)


def make_tree(root: Path, *, classes: int = 3, per_class: int = 5, split: str = "train", seed: int = 0) -> Path:
    """Write root/<split>/n000000NN/*.JPEG with images of many sizes; return root."""
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
    """Return the row that torchvision's Resize(size) and CenterCrop(size) give for a PIL image, made with Pillow."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    w, h = image.size
    size = (width, int(width * h / w)) if width * h >= height * w else (int(height * w / h), height)
    left, top = round((size[0] - width) / 2.0), round((size[1] - height) / 2.0)
    resized = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(resized.crop((left, top, left + width, top + height)))


def tree_bytes(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file below `root` by relative path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
