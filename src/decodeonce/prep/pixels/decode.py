"""Turn the encoded bytes of an image into the bytes of its row: decode, resize, crop, pack.

simplejpeg (libjpeg-turbo) decodes a plain JPEG to RGBX, which Pillow-SIMD then resizes without a copy. Pillow decodes
everything else. Formats are recognized by content, never by name.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import simplejpeg
import xxhash
from numpy.typing import NDArray
from PIL import Image, ImageFile

from decodeonce.host import IMAGE_BYTES, can_allocate
from decodeonce.prep.entry import Box, Entry, Row, Undecodable
from decodeonce.prep.pixels.failure_reasons import BAD_CONTENT, has_single_scan, is_lossless, reads_avif, reason
from decodeonce.prep.pixels.geometry import PixelBox, Placement, fit_to, pixel_box, upright
from decodeonce.prep.pixels.user_map import LoadedMap, MapSample
from decodeonce.prep.recipe import Recipe, gray_range
from decodeonce.store.layout import Paired
from decodeonce.store.pixels import CODECS

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
MAX_PIXELS = 178_956_970  # Pillow's limit for a decompression bomb
PIXEL_BYTES = 16  # maximum memory for decoding, per pixel
MAX_RESIZED_PIXELS = 64 << 20  # if the resized image were larger, only the region that is kept is resized
KEPT_BUFFER = 16 << 20  # larger images get a temporary buffer, so that a worker does not keep the memory of the largest
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
}
SUFFIX_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".gif": "GIF", ".bmp": "BMP", ".webp": "WEBP"}
SUFFIX_FORMATS |= {".tif": "TIFF", ".tiff": "TIFF", ".ppm": "PPM", ".pgm": "PPM", ".pbm": "PPM", ".avif": "AVIF"}
UNUSUAL_MODES = {"L": "gray", "LA": "gray with alpha", "1": "black and white", "P": "palette", "RGBA": "alpha"}
UNUSUAL_MODES["CMYK"] = "CMYK"
REJECTED_MODES = {"F": "floating point pixels, of no known range", "LAB": "LAB colors, which are not converted"}
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
END_MARKER = b"\xff\xd9"
ORIENTATION = 0x0112
UNUSED_BITS = 3  # Gray that does not use so many upper bits is nearly black.
PHOTOMETRIC, WHITE_IS_ZERO = 0x0106, 0  # of TIFF
# Raw modes of gray that Pillow scales to 0..255: 2 and 4 bits in PNG and TIFF, another maximum than 255 in PGM.
SCALED_GRAY = re.compile(r"'L;[24]I?R?'|\('L', (?!255\))\d+\)")
SCALED_DEEP = re.compile(r"\('I', (?!65535\))\d+\)")  # the same for PGM of more than 8 bits


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image.

    Args:
        image: The pixels; may be smaller than the source (scaled decode).
        width: Width of the source in pixels, as stored.
        height: Height of the source in pixels, as stored.
        format: Pillow's name of the format.
        unusual: What is unusual about the image; "" for nothing.
        box: The part that was cut out, in pixels of the source; None for the whole image.
        turn: EXIF orientation that was then applied; 1 for none.
    """

    image: Image.Image
    width: int
    height: int
    format: str
    unusual: str = ""
    box: PixelBox | None = None
    turn: int = 1

    @property
    def shown_size(self) -> tuple[int, int]:
        """(width, height) of what `image` shows, in pixels of the source."""
        left, top, right, bottom = self.box or (0, 0, self.width, self.height)
        return upright((right - left, bottom - top), self.turn)


class Decoder:
    """Turns encoded images into rows.

    Args:
        recipe: How to make a row.
        class_names: Class names in label order, for the recipe's map.
    """

    def __init__(self, recipe: Recipe, class_names: Sequence[str] = ()) -> None:
        self._recipe = recipe
        self._row = (recipe.width, recipe.height)
        self._filter = FILTERS[recipe.filter]
        self._pack = CODECS[recipe.pixels].pack
        self._buffer = np.empty(0, np.uint8)
        self._map = LoadedMap(recipe.map) if recipe.map else None
        self._class_names = class_names

    def row(self, data: bytes, entry: Entry, *paired: bytes) -> Row:
        """Decode, cut out, map, resize, crop and pack one image, followed by what the recipe pairs with it.

        Raise Undecodable also if this takes more than IMAGE_BYTES of memory, and MemoryError if the machine, or a limit
        set by the user, has too little. A map may raise LeftOut or Stopped.
        """
        try:
            decoded = self.decode(data, entry.box)
            image, size = decoded.image, decoded.shown_size
            if self._recipe.paired:
                _check_unturned(data)
            if self._map is not None:
                image = self._mapped(decoded, entry)
                size = image.size
            fit = fit_to(self._recipe.fit, size, self._row)
            extreme = fit.width * fit.height > MAX_RESIZED_PIXELS
            resize = self._resize_region if extreme else self._resize
            pixels, unusual = self._pack(resize(image, fit, self._filter)), [decoded.unusual]
            for one, encoded in zip(self._recipe.paired, paired, strict=True):
                other = self._decode_paired(one, encoded, decoded, entry.box)
                unusual += [f"{one.name}: {other.unusual}"] if other.unusual else []
                filter_, mode = (Image.Resampling.NEAREST, "L") if one.channels == 1 else (self._filter, "RGB")
                pixels += resize(other.image, fit, filter_).tobytes("raw", mode)
        except MemoryError:
            if can_allocate(IMAGE_BYTES):
                raise Undecodable(f"takes more than {IMAGE_BYTES >> 30} GiB of memory to decode") from None
            raise
        except Undecodable:
            if not can_allocate(PIXEL_BYTES * _pixels(data)):  # several libraries report a lack of memory as damage
                raise MemoryError from None
            raise
        rotation = self._ignored_rotation(data)
        all_unusual = _join(
            *unusual, rotation, _misnamed(decoded.format, entry.text), "extreme shape" if extreme else ""
        )
        box = ",".join(map(str, decoded.box)) if decoded.box else ""
        digest = xxhash.xxh3_64_intdigest(data)
        return Row(pixels, decoded.width, decoded.height, all_unusual, digest, decoded.turn, box)

    def decode(
        self, data: bytes, box: Box | None = None, *, turn: int | None = None, mask: bool = False
    ) -> DecodedImage:
        """Decode an image, or a box of it, to RGB or RGBX; raise Undecodable with the reason if that is impossible.

        The image is turned by the EXIF orientation `turn`; None: by its own, if the recipe says so. A `mask` keeps the
        values of its single channel instead, in mode L; those of a palette are indexes.
        """
        if not data:
            raise Undecodable("empty file")
        if turn is None:
            turn = _orientation(data) if self._recipe.exif == "apply" else 1
        is_jpeg = data.startswith(b"\xff\xd8\xff") and not mask
        convert = partial(_converted, levels=self._recipe.levels)
        try:
            decoded = self._decode_plain_jpeg(data, box, turn) if is_jpeg else None
            if decoded is None:
                decoded = _decode_with_pillow(data, _values if mask else convert)
        except Undecodable as problem:
            if mask or self._recipe.on_damaged != "keep-truncated" or not str(problem).startswith("truncated"):
                raise
            decoded = _decode_with_pillow(data, convert, truncated=True)
            decoded = replace(decoded, unusual=_join(decoded.unusual, str(problem)))
        if box is not None:
            image = decoded.image.crop(pixel_box(box, *decoded.image.size))  # the decoded size, which may be scaled
            decoded = replace(decoded, image=image, box=pixel_box(box, decoded.width, decoded.height))
        if turn in TURNS:
            return replace(decoded, image=decoded.image.transpose(TURNS[turn]), turn=turn)
        return decoded

    def _ignored_rotation(self, data: bytes) -> str:
        """Return the EXIF orientation that the recipe ignores, as text; "" for none."""
        if self._recipe.exif == "apply":
            return ""
        # EXIF comes before the quantization tables of a JPEG. To look for it saves 0.1 ms for most images.
        if data.startswith(b"\xff\xd8\xff") and data.find(b"Exif\0\0", 0, data.find(b"\xff\xdb")) < 0:
            return ""
        turn = _orientation(data)
        return f"EXIF rotation {turn}, not applied" if turn in TURNS else ""

    def _decode_paired(self, one: Paired, data: bytes, decoded: DecodedImage, box: Box | None) -> DecodedImage:
        """Decode a mask or second image, and cut and rotate it like its image `decoded`."""
        try:
            _check_unturned(data)
            other = self.decode(data, box, turn=decoded.turn, mask=one.channels == 1)
            if (other.width, other.height) != (decoded.width, decoded.height):
                sizes = f"{other.width}x{other.height} pixels, but its image has {decoded.width}x{decoded.height}"
                raise Undecodable(sizes)
        except Undecodable as problem:
            raise Undecodable(f"{one.name}: {problem}") from None
        return other

    def _mapped(self, decoded: DecodedImage, entry: Entry) -> Image.Image:
        assert self._map is not None
        class_name = self._class_names[entry.label]
        sample = MapSample(entry.text, entry.label, class_name, decoded.width, decoded.height, decoded.box)
        made = self._map(np.array(decoded.image.convert("RGB")), sample)
        _check_size(made.shape[1], made.shape[0])
        return Image.fromarray(made)

    def _decode_plain_jpeg(self, data: bytes, box: Box | None, turn: int) -> DecodedImage | None:
        try:
            height, width, colors, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        except (ValueError, KeyError):  # simplejpeg raises KeyError for a header without a color space
            return None
        if colors not in ("YCbCr", "RGB", "Gray"):
            return None
        _check_size(width, height)
        unusual = "gray" if colors == "Gray" else ""
        least = self._least_size(width, height, box, turn) if self._recipe.scaled_decode else (0, 0)
        pixels = self._jpeg_pixels(data, width, height, least)
        if isinstance(pixels, str) and pixels.startswith("Premature end"):
            pixels = self._pixels_without_end_marker(data, width, height, least, complaint=pixels)
            unusual = _join(unusual, "no end marker")
        if isinstance(pixels, str):
            image, damage = self._decode_damaged(data, pixels)
            return DecodedImage(image, width, height, "JPEG", _join(unusual, damage))
        decoded_height, decoded_width = pixels.shape[:2]
        image = Image.frombuffer("RGBX", (decoded_width, decoded_height), pixels, "raw", "RGBX", 0, 1)
        return DecodedImage(image, width, height, "JPEG", unusual)

    def _pixels_without_end_marker(
        self, data: bytes, width: int, height: int, least: tuple[int, int], *, complaint: str
    ) -> NDArray[np.uint8]:
        """Return the pixels of a JPEG that lacks only its end marker; zeros may follow, but no other bytes.

        Other bytes could be taken for pixels, and scans that are missing would not be noticed.

        Raises:
            Undecodable: More is missing, as `complaint` says.
        """
        ended = data.rstrip(b"\0")
        ended += b"\0" if ended.endswith(b"\xff") else b""  # a zero after 0xff belongs to the pixels
        pixels = self._jpeg_pixels(ended + END_MARKER, width, height, least) if has_single_scan(data) else complaint
        if isinstance(pixels, str):
            raise Undecodable(f"truncated: {complaint}")
        return pixels

    def _jpeg_pixels(self, data: bytes, width: int, height: int, least: tuple[int, int]) -> NDArray[np.uint8] | str:
        """Return the pixels of a JPEG, or the first complaint of libjpeg-turbo."""
        nbytes = 4 * width * height
        if nbytes > self._buffer.nbytes and nbytes <= KEPT_BUFFER:
            # An odd address on purpose. If lines begin at a multiple of 32 bytes, libjpeg-turbo's color conversion
            # writes past the cache (vmovntdq), and the resize then waits for memory. Saves 5% of decode plus resize.
            self._buffer = np.empty(nbytes + 1, np.uint8)[1:]
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                data,
                "RGBX",
                min_width=least[0],
                min_height=least[1],
                buffer=self._buffer if nbytes <= KEPT_BUFFER else None,
                strict=True,
            )
        except ValueError as error:
            return str(error)
        return pixels

    def _least_size(self, width: int, height: int, box: Box | None, turn: int) -> tuple[int, int]:
        """Return the minimum size for a scaled decode: twice the size to resize to."""
        left, top, right, bottom = pixel_box(box, width, height) if box else (0, 0, width, height)
        fit = fit_to(self._recipe.fit, upright((right - left, bottom - top), turn), self._row)
        across, down = upright((fit.width, fit.height), turn)
        return (2 * across * width // (right - left), 2 * down * height // (bottom - top))

    def _decode_damaged(self, data: bytes, complaint: str) -> tuple[Image.Image, str]:
        """Decode a JPEG that libjpeg-turbo complained about with Pillow; return the image and the damage.

        simplejpeg reports only the first warning, so Pillow decides whether garbled data are truncated, too.
        simplejpeg's strict=False would not help: it ignores a fatal error after a warning and returns the buffer with
        the previous image.

        Raises:
            Undecodable: The data are truncated or cannot be decoded, or the recipe rejects damaged images.
        """
        if "memory" in complaint:
            raise MemoryError(complaint)
        try:
            with _opened(data) as opened:
                image = opened.convert("RGBX")
        except BAD_CONTENT as error:
            short = "truncated" in str(error)
            raise Undecodable(f"truncated: {error}" if short else reason(data, ValueError(complaint))) from None
        damage = f"garbled: {complaint}"
        if self._recipe.on_damaged == "reject":
            raise Undecodable(damage)
        return image, damage

    def _resize(self, image: Image.Image, fit: Placement, filter_: Image.Resampling) -> Image.Image:
        row_width, row_height = self._row
        if self._recipe.fit == "pad":
            canvas = Image.new(image.mode, self._row)
            canvas.paste(image.resize((fit.width, fit.height), filter_), (-fit.left, -fit.top))
            return canvas
        # Pillow resizes horizontally, then vertically, with bytes in between. Crop in between, so that the vertical
        # pass skips the columns that the crop drops: same bytes, 0.22 ms instead of 0.28 ms. If the image is more than
        # twice as tall as wide, Pillow 13 resizes it vertically first.
        if fit.width > row_width and image.height <= 2 * image.width:
            image = image.resize((fit.width, image.height), filter_)
            image = image.crop((fit.left, 0, fit.left + row_width, image.height))
            fit = replace(fit, width=row_width, left=0)
        image = image.resize((fit.width, fit.height), filter_)
        if image.size == self._row:
            return image
        return image.crop((fit.left, fit.top, fit.left + row_width, fit.top + row_height))

    def _resize_region(self, image: Image.Image, fit: Placement, filter_: Image.Resampling) -> Image.Image:
        across, down = image.width / fit.width, image.height / fit.height
        left, top = max(fit.left, 0), max(fit.top, 0)
        width, height = min(fit.width, self._row[0]), min(fit.height, self._row[1])
        box = (left * across, top * down, (left + width) * across, (top + height) * down)
        region = image.resize((width, height), filter_, box=box)
        if region.size == self._row:
            return region
        canvas = Image.new(image.mode, self._row)
        canvas.paste(region, (-min(fit.left, 0), -min(fit.top, 0)))
        return canvas


def _check_size(width: int, height: int) -> None:
    if not 0 < width * height <= MAX_PIXELS:
        if width < 1 or height < 1:
            raise Undecodable(f"{width}x{height} pixels")
        raise Undecodable(f"decompression bomb: {width}x{height} pixels, more than {MAX_PIXELS}")


@contextmanager
def _opened(data: bytes, *, check: bool = True, truncated: bool = False) -> Iterator[Image.Image]:
    """Open an image with Pillow, without its warnings, and check its size and kind unless only the header is read.

    With `truncated`, the block can load a truncated image, whatever a user's code has set for its own images.
    """
    with warnings.catch_warnings(), _truncated_images_load(truncated):
        warnings.simplefilter("ignore")
        is_avif = data[4:8] == b"ftyp" and reads_avif()
        image: Image.Image = Image.open(io.BytesIO(data), formats=_with_avif() if is_avif else FORMATS)
        if check:
            _check_size(*image.size)
            if image.format == "JPEG" and is_lossless(data):
                # libjpeg-turbo 3 reads some of these and 2 none: a store must not depend on Pillow's
                raise OSError("lossless, of which only RGB is read")
        yield image


def _with_avif() -> tuple[str, ...]:
    """Return the formats and AVIF. Let Pillow decode AVIF in one thread, because each core has a worker."""
    from PIL import AvifImagePlugin  # older ones lack it

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    return (*FORMATS, "AVIF")


@contextmanager
def _truncated_images_load(load: bool) -> Iterator[None]:
    """Let Pillow load truncated images, or not, in a block."""
    before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, load
    try:
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = before


def _decode_with_pillow(
    data: bytes, convert: Callable[[Image.Image], DecodedImage], *, truncated: bool = False
) -> DecodedImage:
    try:
        with _opened(data, truncated=truncated) as image:
            return convert(image)
    except BAD_CONTENT as error:
        raise Undecodable(reason(data, error)) from None


def _converted(image: Image.Image, *, levels: str | None) -> DecodedImage:
    """Convert an opened image to RGB. Channels of 12 and 16 bits keep the upper 8, or gray is scaled as in `Recipe`."""
    format_ = "JPEG" if image.format == "MPO" else str(image.format)  # MPO is a JPEG followed by more images
    raw = str(getattr(image, "tile", ""))  # Pillow's name for the stored pixels; load() clears it
    deep = next((bits for bits in (12, 16) if f";{bits}" in raw), 0)  # Pillow itself converts 16-bit colors to 8 bits
    # Pillow inverts a TIFF of 8 bits in which white is 0, but no TIFF of 16 bits.
    is_negative = format_ == "TIFF" and getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO
    image.load()
    width, height = image.size
    if image.mode == "I" and format_ == "TIFF":
        raise Undecodable(f"{'signed 16-bit' if deep else '32-bit'} pixels, of no known range")
    if image.mode in REJECTED_MODES:
        raise Undecodable(REJECTED_MODES[image.mode])
    if image.mode.startswith("I"):
        if levels is not None and SCALED_DEEP.search(raw):
            raise Undecodable("PGM whose values Pillow scales to 65535, which --levels does not expect; save it as PNG")
        values, unusual = _eight_bits(image, deep or 16, levels)
        gray = Image.fromarray(255 - values if is_negative else values)
        return DecodedImage(gray.convert("RGB"), width, height, format_, unusual)
    unusual = _join(UNUSUAL_MODES.get(image.mode, ""), f"{deep} bit" if deep else "")
    return DecodedImage(image.convert("RGB"), width, height, format_, unusual)


def _values(image: Image.Image) -> DecodedImage:
    """Return the values of an opened image of one channel of up to 8 bits; of a palette, the indexes."""
    if image.mode not in ("1", "L", "P"):
        expected = "expected one channel of 8 bits or a palette; name it NAME:rgb to keep three channels"
        raise Undecodable(f"{image.mode} pixels, {expected}")
    if SCALED_GRAY.search(str(getattr(image, "tile", ""))):
        advice = "save it with 8 bits per pixel or as a palette"
        raise Undecodable(f"levels of gray that do not go up to 255, which Pillow scales to 0..255; {advice}")
    values = Image.fromarray(np.asarray(image).astype(np.uint8))
    return DecodedImage(values, *image.size, str(image.format))


def _eight_bits(image: Image.Image, bits: int, levels: str | None) -> tuple[NDArray[np.uint8], str]:
    """Return deep gray as 8 bits, and what is unusual about it; Pillow's own conversion clips to white."""
    height, lines = image.height, max(1, (1 << 20) // image.width)  # some lines at a time, to bound the memory

    def parts() -> Iterator[tuple[int, NDArray[np.int64]]]:
        for top in range(0, height, lines):
            part = image.crop((0, top, image.width, min(top + lines, height)))
            yield top, np.asarray(part).astype(np.int64)

    low, high = (0, 1) if levels is None else gray_range(levels) or _least_and_most(parts())
    gray, most = np.empty((height, image.width), np.uint8), 0
    for top, values in parts():
        most = max(most, int(values.max()))
        eight = values >> (bits - 8) if levels is None else ((values - low) * 510 + (high - low)) // (2 * (high - low))
        gray[top : top + lines] = eight.clip(0, 255)
    used = max(most, 1).bit_length()
    is_dark = levels is None and used <= bits - UNUSED_BITS
    return gray, f"{bits} bit, values of {used} bits" if is_dark else f"{bits} bit"


def _least_and_most(parts: Iterable[tuple[int, NDArray[np.int64]]]) -> tuple[int, int]:
    """Return the least value of an image, and the greatest, which is at least 1 more."""
    ends = [(int(values.min()), int(values.max())) for _, values in parts]
    least, most = min(low for low, _ in ends), max(high for _, high in ends)
    return least, max(most, least + 1)


def _orientation(data: bytes, *, tiff: bool = False) -> int:
    """Return the EXIF orientation that is still to be applied, or with `tiff` the one that Pillow applies itself."""
    try:
        with _opened(data, check=False) as image:
            # In TIFF the orientation belongs to the format, and Pillow applies it when it decodes.
            return int(image.getexif().get(ORIENTATION, 1)) if (image.format == "TIFF") == tiff else 1
    except BAD_CONTENT:
        return 1


def _check_unturned(data: bytes) -> None:
    """Refuse a TIFF that Pillow turns, because the image that it is paired with would not turn with it."""
    if data[:2] in (b"II", b"MM") and (turn := _orientation(data, tiff=True)) in TURNS:
        advice = "save the TIFF upright, without an orientation"
        raise Undecodable(f"TIFF with orientation {turn}, which its pair would not follow; {advice}")


def _pixels(data: bytes) -> int:
    """Return the number of pixels in an image's header, at most MAX_PIXELS; 0 if the header cannot be read."""
    try:
        with _opened(data, check=False) as image:
            return min(image.width * image.height, MAX_PIXELS)
    except BAD_CONTENT:
        return 0


def _misnamed(found: str, name: str) -> str:
    suffix = os.path.splitext(name)[1]
    return f"{found} named {suffix}" if SUFFIX_FORMATS.get(suffix.lower(), found) != found else ""


def _join(*unusual: str) -> str:
    return ", ".join(filter(None, unusual))
