"""Decode images that are no plain JPEGs, and say in words for rejects.tsv what is unusual about an image.

Pillow decodes them: other formats, CMYK, gray of more than 8 bits, and JPEGs for which libjpeg-turbo gives a warning.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from decodeonce.host import IMAGE_BYTES, can_allocate
from decodeonce.prep.listing import SEGMENTATION, Box, PixelBox, Undecodable
from decodeonce.prep.pixels import failure_reasons
from decodeonce.prep.pixels.failure_reasons import (
    BAD_CONTENT,
    INTERLEAVE,
    MISSING_SCANS,
    check_size,
    has_single_scan,
    is_lossless,
    lacks_scans,
    reads_avif,
    reason,
)
from decodeonce.prep.recipe import gray_range

logging.getLogger("PIL").addHandler(logging.NullHandler())  # a reject has the reason that Pillow would print
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
ANIMATED = ("GIF", "PNG", "WEBP", "AVIF")  # formats with frames; a TIFF has pages, and an MPO previews or other views
PIXEL_BYTES = 16  # maximum memory for decoding, per pixel
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
TURNS_BACK = {6: 8, 8: 6}  # what undoes a turn; each of the others undoes itself
WHOLE_BOX: Box = (0, 0, 1, 1)  # the box of a whole image
END_MARKER = b"\xff\xd9"
ORIENTATION = 0x0112
MOSTLY_WHITE = "most values are above --levels"
UNUSED_BITS = 2  # An image that does not use so many upper bits is dark.
CR2_START = b"\x10\0\0\0CR\2\0"  # of Canon's RAW files, after the four bytes of TIFF
# Tags of TIFF, and their values.
NEW_SUBFILE_TYPE, SUBFILE_TYPE, REDUCED, REDUCED_BEFORE_6 = 254, 255, 1, 2
BITS_PER_SAMPLE, PHOTOMETRIC, FILL_ORDER, SAMPLES, PLANAR_CONFIGURATION, EXTRA_SAMPLES = 258, 262, 266, 277, 284, 338
ASSOCIATED_ALPHA = 1  # a value of ExtraSamples
WHITE_IS_ZERO, YCBCR, SEPARATE = 0, 6, 2
# Raw modes of gray that Pillow scales to 0..255: 2 and 4 bits in PNG and TIFF, another maximum than 255 in PGM.
SCALED_GRAY = re.compile(r"'L;[24]I?R?'|\('L', (?!255\))\d+\)")
SCALED_DEEP = re.compile(r"\('I', (?!65535\))\d+\)")  # the same for PGM of more than 8 bits
COLOR_PPM = re.compile(r"\('RGB', (\d+)\)")  # and PPM with this maximum, which Pillow scales to 0..255
DEEP_COLOR = re.compile(r"(RGB[AX]?;16)([BLN])")  # Raw modes of which Pillow keeps the upper byte of each value.


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
        scale: The size of the decoded image, in sizes of the source.
        extent: The part of `image` that is in the box. The pixels at its edges may also cover what is outside of it.
        colors: The colors of the indexes that a mask with a palette has, such as "ff0000".
    """

    image: Image.Image
    width: int
    height: int
    format: str
    unusual: str = ""
    box: PixelBox | None = None
    turn: int = 1
    scale: float = 1
    extent: Box = WHOLE_BOX
    colors: Mapping[int, str] = field(default_factory=dict)

    @property
    def shown_size(self) -> tuple[int, int]:
        """(width, height) of what `image` shows, in pixels of the source."""
        left, top, right, bottom = self.box or (0, 0, self.width, self.height)
        return upright((right - left, bottom - top), self.turn)


def upright(size: tuple[int, int], turn: int) -> tuple[int, int]:
    """Return (width, height) after applying EXIF orientation `turn` (1 to 8), or before it."""
    return (size[1], size[0]) if turn >= 5 else size


def turned_box(box: Box, turn: int) -> Box:
    """Return a box after its image was rotated or flipped by EXIF orientation `turn` (1 to 8)."""
    left, top, right, bottom = box
    if turn >= 5:
        left, top, right, bottom = top, left, bottom, right
    if turn in (2, 3, 6, 7):
        left, right = 1 - right, 1 - left
    if turn in (3, 4, 7, 8):
        top, bottom = 1 - bottom, 1 - top
    return (left, top, right, bottom)


def is_upright(annotated: Sequence[float], size: tuple[int, int], turn: int) -> bool:
    """Return whether an annotation of a size describes an image after EXIF orientation `turn`, and not as stored.

    Only 5 to 8 tell, which swap the sides. An annotation may be for a scaled image, so their ratio decides. Each of its
    sides may be rounded by a pixel.
    """
    (wide, high), (width, height) = annotated, size
    swapped = abs(wide * width - high * height)
    return 5 <= turn <= 8 and swapped <= width + height and swapped < abs(wide * height - high * width)


def decode(data: bytes, levels: str | None, *, reject: bool = False, truncated: bool = False) -> DecodedImage:
    """Decode an image with Pillow to RGB, with `levels` as in `Recipe`; raise Undecodable with the reason.

    With `reject`, a JPEG that lacks scans is undecodable. With `truncated`, the missing part of a truncated image has
    one color.
    """
    try:
        with _opened(data, truncated=truncated) as image:
            decoded = _converted(image, levels, partial(_lower_bytes, data, truncated))
    except BAD_CONTENT as error:
        raise Undecodable(reason(data, error)) from None
    if decoded.format != "JPEG" or truncated or not lacks_scans(data):
        return decoded
    if reject:
        raise Undecodable(f"garbled: {MISSING_SCANS}")
    return replace(decoded, unusual=joined(decoded.unusual, f"garbled: {MISSING_SCANS}"))


def decode_mask(data: bytes) -> DecodedImage:
    """Decode an image of one channel of up to 8 bits to its values in mode L; of a palette, to the indexes."""
    try:
        with _opened(data) as image:
            decoded = _values(image)
    except BAD_CONTENT as error:
        raise Undecodable(reason(data, error)) from None
    if decoded.format == "JPEG" and lacks_scans(data):
        raise Undecodable(f"garbled: {MISSING_SCANS}")
    return decoded


def decode_damaged_jpeg(data: bytes, complaint: str, *, reject: bool) -> tuple[Image.Image, str]:
    """Decode a damaged JPEG with Pillow, given a complaint; return the image and the damage.

    simplejpeg reports only the first warning, so Pillow decides whether garbled data are truncated, too.
    simplejpeg's strict=False would not help: it ignores a fatal error after a warning and returns the buffer with
    the previous image.

    Raises:
        Undecodable: The data are truncated or cannot be decoded, or `reject` is set.
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
    if reject:
        raise Undecodable(damage)
    return image, damage


def with_end_marker(data: bytes) -> bytes | None:
    """Return a JPEG with the end marker that it lacks, perhaps followed by zeros; None if more may be missing.

    Other bytes than zeros could be taken for pixels, and scans that are missing would not be noticed.
    """
    if not has_single_scan(data):
        return None
    ended = data.rstrip(b"\0")
    return ended + (b"\0" if ended.endswith(b"\xff") else b"") + END_MARKER  # a zero after 0xff belongs to the pixels


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
            check_size(*image.size)
            if image.format == "JPEG" and is_lossless(data):
                # libjpeg-turbo 3 reads some of these and 2 none: a store must not depend on Pillow's
                raise OSError("lossless, of which only RGB is read")
            if image.format == "TIFF":
                _check_tiff(image, data)
        yield image


def _check_tiff(image: Image.Image, data: bytes) -> None:
    """Raise Undecodable for a TIFF of a kind that Pillow opens but decodes to wrong pixels, or to a thumbnail."""
    tags = image.tag_v2  # type: ignore[attr-defined]
    is_reduced = tags.get(NEW_SUBFILE_TYPE, 0) & REDUCED or tags.get(SUBFILE_TYPE) == REDUCED_BEFORE_6
    if is_reduced or data[4:12] == CR2_START:
        advice = "convert the file to a TIFF or JPEG of full size, for example with darktable-cli"
        raise Undecodable(f"reduced-resolution image of a RAW file; {advice}")
    colors, is_raw = tags.get(PHOTOMETRIC, WHITE_IS_ZERO), "'raw'" in str(getattr(image, "tile", ""))
    if is_raw and colors == YCBCR:
        raise Undecodable("uncompressed YCbCr TIFF, whose colors are not converted; save it as RGB")
    if tags.get(PLANAR_CONFIGURATION) != SEPARATE:
        return
    if is_raw:  # Pillow copies the bytes of each plane.
        is_read = set(tags.get(BITS_PER_SAMPLE, ())) == {8} and colors != WHITE_IS_ZERO and tags.get(FILL_ORDER, 1) == 1
    else:  # Pillow divides the colors by a fourth band whose meaning is not declared.
        is_read = image.mode != "RGBA" or EXTRA_SAMPLES in tags
    if not is_read or tags.get(SAMPLES, 1) != len(image.getbands()):
        advice = f"which Pillow decodes wrong; {INTERLEAVE}"
        raise Undecodable(f"TIFF with separate planes (PlanarConfiguration 2), {advice}")


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


def _converted(image: Image.Image, levels: str | None, lower_bytes: Callable[[], Image.Image]) -> DecodedImage:
    """Convert an opened image to RGB. Channels of 12 and 16 bits keep the upper 8, or are scaled as in `Recipe`."""
    format_ = "JPEG" if image.format == "MPO" else str(image.format)  # MPO is a JPEG followed by more images
    raw = str(getattr(image, "tile", ""))  # Pillow's name for the stored pixels; load() clears it
    ppm = COLOR_PPM.search(raw)
    deep = 16 if ppm and int(ppm[1]) > 255 else next((bits for bits in (12, 16) if f";{bits}" in raw), 0)
    # Pillow inverts a TIFF of 8 bits in which white is 0, but no TIFF of 16 bits.
    is_negative = format_ == "TIFF" and getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO
    has_planes = getattr(image, "tag_v2", {}).get(PLANAR_CONFIGURATION) == SEPARATE
    losses = _losses(image)
    image.load()
    # convert() would convert it, too, and fails with that of 1 bit for yuv420
    is_transparent = image.info.pop("transparency", None) is not None and image.mode not in ("P", "1")
    if image.mode == "I" and format_ == "TIFF":
        raise Undecodable(f"{'signed 16-bit' if deep else '32-bit'} pixels, of no known range")
    if image.mode in REJECTED_MODES:
        raise Undecodable(REJECTED_MODES[image.mode])
    kind = UNUSUAL_MODES.get(image.mode, "")
    if image.mode.startswith("I"):
        if levels is not None and SCALED_DEEP.search(raw):
            raise Undecodable("PGM whose values Pillow scales to 65535, which --levels does not expect; save it as PNG")
        values, depth = _eight_bits(image, None, deep or 16, levels)
        rgb = Image.fromarray(255 - values if is_negative else values).convert("RGB")
    elif deep and levels is not None:
        if not DEEP_COLOR.search(raw) or has_planes:
            found = f"{format_} of 16 bits in mode {image.mode}{', with separate planes' if has_planes else ''}"
            raise Undecodable(f"{found}, which --levels does not scale; save it as PNG in gray or RGB")
        values, depth = _eight_bits(image, lower_bytes(), deep, levels)
        rgb = Image.fromarray(values)
    else:
        used = deep if has_planes else 8 + _greatest(image).bit_length()  # --levels does not scale planes
        depth = _depth(deep, used) if deep else ""  # Pillow itself kept the upper bytes
        rgb = image.convert("RGB")
    color = "transparent color" if is_transparent else ""
    return DecodedImage(rgb, *image.size, format_, joined(kind, color, depth, losses))


def _depth(bits: int, used: int) -> str:
    """Return as text how many bits an image has, and how many of them it uses if it is stored dark for that reason."""
    return f"{bits} bit, values of {used} bits" if used <= bits - UNUSED_BITS else f"{bits} bit"


def _values(image: Image.Image) -> DecodedImage:
    """Return the values of an opened image of one channel of up to 8 bits; of a palette, the indexes."""
    if image.mode not in ("1", "L", "P"):
        classes = f"if its colors are classes, replace them by numbers first ({SEGMENTATION})"
        advice = f"{classes}; otherwise name it NAME:rgb to keep three channels, which are interpolated"
        if image.mode[0] in "IF":
            advice = f"scale its values to 8 bits first ({SEGMENTATION}#depth-of-16-bits)"
        raise Undecodable(f"{image.mode} pixels, expected one channel of 8 bits or a palette; {advice}")
    if SCALED_GRAY.search(str(getattr(image, "tile", ""))):
        advice = "save it with 8 bits per pixel or as a palette"
        raise Undecodable(f"levels of gray that do not go up to 255, which Pillow scales to 0..255; {advice}")
    values = Image.fromarray(np.asarray(image).astype(np.uint8))
    palette, counts = bytes(image.getpalette() or b""), values.histogram()
    colors = {at: palette[3 * at : 3 * at + 3].hex() for at in range(len(palette) // 3) if counts[at]}
    lossy = "JPEG, which changes values" if image.format == "JPEG" else ""
    return DecodedImage(values, *image.size, str(image.format), joined(lossy, _losses(image)), colors=colors)


def _losses(image: Image.Image) -> str:
    """Return as text what of an image is not in its pixels: bands of a TIFF besides alpha, pages and frames.

    Also if Pillow divides the colors of a TIFF by its alpha.
    """
    tags = getattr(image, "tag_v2", None)
    others = "several pages, the first is kept" if getattr(tags, "next", 0) else ""
    if _is_animated(image):
        others = "animation, the first frame is kept"
    kept, bands = len(image.getbands()), (tags or {}).get(SAMPLES, 1)
    if (tags or {}).get(EXTRA_SAMPLES) == (ASSOCIATED_ALPHA,) and bands == 4:
        others = joined("its colors are divided by the 4th band, which is declared as associated alpha", others)
    if bands <= kept:
        return others
    which = f"last {bands - kept} are" if bands - kept > 1 else f"{bands}{'nd' if bands == 2 else 'th'} is"
    return joined(f"{bands} bands, the {which} dropped", others)


def _is_animated(image: Image.Image) -> bool:
    """Return whether an image has several frames. Of a GIF, Pillow looks for the second one."""
    try:
        return image.format in ANIMATED and bool(getattr(image, "is_animated", False))
    except BAD_CONTENT:
        return True


def _greatest(image: Image.Image) -> int:
    """Return the greatest value in an image of 8 bits, without its alpha."""
    counts = image.histogram()[: 256 * len(image.getbands()[: -1 if "A" in image.getbands() else None])]
    return max(place % 256 for place, count in enumerate(counts) if count)


def _lower_bytes(data: bytes, truncated: bool) -> Image.Image:
    """Return the lower bytes of an image of DEEP_COLOR, which are the upper ones in the other byte order."""
    others = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
    with _opened(data, truncated=truncated) as image:
        assert isinstance(image, ImageFile.ImageFile)
        for number, tile in enumerate(image.tile):
            mode, *rest = (tile.args,) if isinstance(tile.args, str) else tile.args or ()
            mode = DEEP_COLOR.sub(lambda found: found[1] + others[found[2]], mode)
            image.tile[number] = tile._replace(args=(mode, *rest))
        image.load()
        return image


def _eight_bits(
    image: Image.Image, lower: Image.Image | None, bits: int, levels: str | None
) -> tuple[NDArray[np.uint8], str]:
    """Return deep gray, or deep color with its `lower` bytes, as 8 bits, and its depth as text.

    Pillow's own conversion clips gray to white, and keeps the upper bytes of color.
    """
    height, lines = image.height, max(1, (1 << 20) // image.width)  # some lines at a time, to bound the memory

    def parts() -> Iterator[tuple[int, NDArray[np.int64]]]:
        for top in range(0, height, lines):
            box = (0, top, image.width, min(top + lines, height))
            values = np.asarray(image.crop(box)).astype(np.int64)
            yield top, values if lower is None else (values << 8 | np.asarray(lower.crop(box)))[..., :3]

    low, high = (0, 1) if levels is None else gray_range(levels) or _least_and_most(parts())
    scaled, most = np.empty((height, image.width, *(() if lower is None else (3,))), np.uint8), 0
    for top, values in parts():
        most = max(most, int(values.max()))
        eight = values >> (bits - 8) if levels is None else ((values - low) * 510 + (high - low)) // (2 * (high - low))
        scaled[top : top + lines] = eight.clip(0, 255)
    if levels is None:
        return scaled, _depth(bits, max(most, 1).bit_length())
    is_white = most > high and np.count_nonzero(scaled == 255) > scaled.size // 2
    return scaled, f"{bits} bit, {MOSTLY_WHITE}" if is_white else f"{bits} bit"


def _least_and_most(parts: Iterable[tuple[int, NDArray[np.int64]]]) -> tuple[int, int]:
    """Return the least value of an image, and the greatest, which is at least 1 more."""
    ends = [(int(values.min()), int(values.max())) for _, values in parts]
    least, most = min(low for low, _ in ends), max(high for _, high in ends)
    return least, max(most, least + 1)


def orientation(data: bytes, *, tiff: bool = False) -> int:
    """Return the EXIF orientation that is still to be applied, or with `tiff` the one that Pillow applies itself."""
    return _turn(_stored_orientation(data, tiff=tiff))


def _turn(stored: object) -> int:
    """Return the orientation as which ImageOps.exif_transpose takes a value: 6.0 is 6, but the text "6" is none."""
    return next((turn for turn in TURNS if turn == stored), 1)


def _stored_orientation(data: bytes, *, tiff: bool = False) -> object:
    try:
        with _opened(data, check=False) as image:
            # In TIFF the orientation belongs to the format, and Pillow applies it when it decodes.
            return image.getexif().get(ORIENTATION, 1) if (image.format == "TIFF") == tiff else 1
    except BAD_CONTENT:
        return 1


def annotated_turn(data: bytes, annotated: Sequence[float]) -> int:
    """Return the EXIF orientation after which an annotation of this size describes an image; 1 if it does as stored."""
    if (turn := orientation(data)) == 1:
        return 1
    with _opened(data, check=False) as image:  # as orientation() did
        return turn if is_upright(annotated, image.size, turn) else 1


def ignored_rotation(data: bytes, *, apply: bool) -> str:
    """Return as text the EXIF orientation of an image that is not applied; "" for none."""
    stored = _stored_orientation(data)
    if isinstance(stored, (str, bytes, tuple)):
        return f"EXIF rotation {stored[:8]!r}, which is not a number, not applied"
    turn = _turn(stored)
    return f"EXIF rotation {turn}, not applied" if turn != 1 and not apply else ""


def check_unturned(data: bytes) -> None:
    """Refuse a TIFF that Pillow turns, because the image that it is paired with would not turn with it."""
    if data[:2] in (b"II", b"MM") and (turn := orientation(data, tiff=True)) in TURNS:
        advice = "save the TIFF upright, without an orientation"
        raise Undecodable(f"TIFF with orientation {turn}, which its pair would not follow; {advice}")


def misnamed(found: str, name: str) -> str:
    """Return as text that the suffix of the name is that of another format than the one found; "" otherwise."""
    suffix = os.path.splitext(name)[1]
    return f"{found} named {suffix}" if SUFFIX_FORMATS.get(suffix.lower(), found) != found else ""


def joined(*notes: str) -> str:
    """Join what is unusual about an image to one text."""
    return ", ".join(filter(None, notes))


def real_error(error: MemoryError | Undecodable, data: bytes) -> MemoryError | Undecodable:
    """Return the error to raise for one raised by decoding, which depends on the memory that is left.

    An image that needs more than IMAGE_BYTES is undecodable, even if the machine has more. An image that fails because
    the machine has less is not.
    """
    if isinstance(error, MemoryError):
        is_bomb = can_allocate(IMAGE_BYTES)
        return Undecodable(f"takes more than {IMAGE_BYTES >> 30} GiB of memory to decode") if is_bomb else error
    if not can_allocate(PIXEL_BYTES * _pixels(data)):  # several libraries report a lack of memory as damage
        return MemoryError()
    return error


def _pixels(data: bytes) -> int:
    """Return the number of pixels in an image's header, at most MAX_PIXELS; 0 if the header cannot be read."""
    try:
        with _opened(data, check=False) as image:
            return min(image.width * image.height, failure_reasons.MAX_PIXELS)
    except BAD_CONTENT:
        return 0
