"""Turn the encoded bytes of an image into the bytes of its row: decode, resize, crop, pack.

`Decoder.row` first tries the plain way, which most images take: simplejpeg (libjpeg-turbo) decodes a JPEG of three
channels to RGBX, which Pillow-SIMD then resizes without a copy. The general way, from `_any_row` on, takes the same
steps for any image, and does what a recipe may ask for in addition. `unusual.py` decodes what libjpeg-turbo does not,
with Pillow. Formats are recognized by content, never by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

import numpy as np
import simplejpeg
import xxhash
from numpy.typing import NDArray
from PIL import Image
from PIL.Image import Resampling

from decodeonce.prep.listing import Box, Entry, PixelBox, Row, Undecodable
from decodeonce.prep.pixels import unusual
from decodeonce.prep.pixels.failure_reasons import MISSING_SCANS, check_size, lacks_scans, without_color_profile
from decodeonce.prep.pixels.unusual import WHOLE_BOX, DecodedImage, upright
from decodeonce.prep.pixels.user_map import LoadedMap, MapSample
from decodeonce.prep.recipe import Recipe
from decodeonce.store.format import CODECS
from decodeonce.store.layout import Paired

MAX_RESIZED_PIXELS = 64 << 20  # if the resized image were larger, only the region that is kept is resized
KEPT_BUFFER = 16 << 20  # larger images get a temporary buffer, so that a worker does not keep the memory of the largest
JPEG_START, PNG_START = b"\xff\xd8\xff", b"\x89PNG"
EXIF_IN_PNG = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")  # names before what may hold an orientation
LabelOf = Callable[[Entry], int]
OTHER_SUFFIXES = tuple(suffix.encode() for suffix, name in unusual.SUFFIX_FORMATS.items() if name != "JPEG")
_OF_BOXES = {"box", "annotated"}  # numbers of entries that a plain row does not look at
# The columns and rows of a scaled image that share a value for color; 0 for none. libjpeg-turbo scales 4:2:0 so that
# none do.
SHARED_COLOR = {"422": (2, 0), "440": (0, 2), "411": (4, 0)}
LEAST_SCALED = 32  # smaller images are decoded whole; from here on, each denominator gives another size
_ALMOST = 1e-6  # 0.29 * 100 is 28.999999999999996


class Decoder:
    """Turns encoded images into rows.

    Args:
        recipe: How to make a row.
        class_names: Class names in label order, for the recipe's map.
        label_of: Returns the label of a sample, for the recipe's map.
    """

    def __init__(
        self, recipe: Recipe, class_names: Sequence[str] = (), label_of: LabelOf = attrgetter("label")
    ) -> None:
        self._recipe = recipe
        self._row_size = (recipe.width, recipe.height)
        self._filter = Resampling[recipe.filter.upper()]
        self._pack = CODECS[recipe.pixels].pack
        self._buffer = np.empty(0, np.uint8)
        self._map = LoadedMap(recipe.map) if recipe.map else None
        self._class_names, self._label_of = class_names, label_of
        self._is_plain = not (recipe.exif == "apply" or recipe.scaled_decode or recipe.map or recipe.paired)

    def row(self, data: bytes, entry: Entry, *paired: bytes) -> Row:
        """Decode, cut out, map, resize, crop and pack one image, followed by what the recipe pairs with it.

        Raise Undecodable also if this takes more memory than `host.IMAGE_BYTES`, and MemoryError if the machine, or a
        limit set by the user, has too little. A map may raise LeftOut or Stopped.
        """
        try:
            return self._plain_row(data, entry) or self._any_row(data, entry, paired)
        except (MemoryError, Undecodable) as error:
            raise unusual.real_error(error, data) from None

    def _plain_row(self, data: bytes, entry: Entry) -> Row | None:
        """Return the row of a plain JPEG; None if the image is unusual, or if the recipe asks for more."""
        size = self._plain_size(data, entry) if self._is_plain else None
        if size is None:
            return None
        placement = fit_to(self._recipe.fit, size, self._row_size)
        if placement.width * placement.height > MAX_RESIZED_PIXELS:
            return None
        pixels = self._jpeg_pixels(data, *size)
        if isinstance(pixels, str):
            return None
        image = Image.frombuffer("RGBX", size, pixels, "raw", "RGBX", 0, 1)
        packed = self._pack(self._resize(image, placement, self._filter, WHOLE_BOX))
        return Row(packed, *size, "", xxhash.xxh3_64_intdigest(data))

    def _plain_size(self, data: bytes, entry: Entry) -> tuple[int, int] | None:
        """Return (width, height) of a whole JPEG of three channels that needs no note; None for all others."""
        header = _jpeg_header(data)
        if header is None or header[2] == "Gray" or _may_have_exif(data):
            return None
        if _OF_BOXES & entry.numbers.keys() or entry.name.lower().endswith(OTHER_SUFFIXES):
            return None
        check_size(*header[:2])
        return header[:2]

    def _jpeg_pixels(
        self, data: bytes, width: int, height: int, least: tuple[int, int] = (0, 0)
    ) -> NDArray[np.uint8] | str:
        """Return the pixels of a JPEG, or the first complaint of libjpeg-turbo, or that scans are missing.

        If `least` is a size, the image may be scaled down, but not below it.
        """
        nbytes = 4 * width * height
        if nbytes > self._buffer.nbytes and nbytes <= KEPT_BUFFER:
            # An odd address on purpose. If lines begin at a multiple of 32 bytes, libjpeg-turbo's color conversion
            # writes past the cache (vmovntdq), and the resize then waits for memory. Saves 5% of decode plus resize.
            self._buffer = np.empty(nbytes + 1, np.uint8)[1:]
        buffer = self._buffer if nbytes <= KEPT_BUFFER else None
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                data, "RGBX", min_width=least[0], min_height=least[1], buffer=buffer, strict=True
            )
        except ValueError as error:
            return str(error)
        return MISSING_SCANS if lacks_scans(data) else pixels

    def _resize(self, image: Image.Image, placement: Placement, filter_: Resampling, extent: Box) -> Image.Image:
        (row_width, row_height), width, left = self._row_size, placement.width, placement.left
        begin, top, end, bottom = (edge * side for edge, side in zip(extent, image.size * 2, strict=True))
        # Pillow resizes horizontally, then vertically, with bytes in between. Crop in between, so that the vertical
        # pass skips the columns that the crop drops: same bytes, 0.22 ms instead of 0.28 ms. If the image is more than
        # twice as tall as wide, Pillow 13 resizes it vertically first.
        if width > row_width and image.height <= 2 * image.width:
            image = image.resize((width, image.height), filter_, (begin, 0, end, image.height))
            image = image.crop((left, 0, left + row_width, image.height))
            width, left, begin, end = row_width, 0, 0, row_width
        image = image.resize((width, placement.height), filter_, (begin, top, end, bottom))
        if image.size == self._row_size:
            return image
        if self._recipe.fit == "pad":
            return self._padded(image, placement)
        return image.crop((left, placement.top, left + row_width, placement.top + row_height))

    def _padded(self, image: Image.Image, placement: Placement) -> Image.Image:
        canvas = Image.new(image.mode, self._row_size)
        canvas.paste(image, (max(-placement.left, 0), max(-placement.top, 0)))
        return canvas

    def _any_row(self, data: bytes, entry: Entry, paired: Sequence[bytes]) -> Row:
        """Return the row of any image, with all that its entry and the recipe may ask for."""
        annotated = entry.numbers.get("annotated", [])
        turn = self._annotated_turn(data, annotated)
        box = entry.box and unusual.turned_box(entry.box, unusual.TURNS_BACK.get(turn, turn))
        decoded = self.decode(data, box)
        if turn == 1 and annotated == [decoded.height, decoded.width] != [decoded.width, decoded.height]:
            sides = f"{decoded.height}x{decoded.width} pixels, but the image has {decoded.width}x{decoded.height}"
            raise Undecodable(f"its boxes are for {sides}; correct the size in the annotation, or rotate the image")
        image, size = decoded.image, decoded.shown_size
        if self._recipe.paired:
            unusual.check_unturned(data)
        if self._map is not None:
            image = self._mapped(decoded, entry)
            size = image.size
        placement = fit_to(self._recipe.fit, size, self._row_size)
        extreme = placement.width * placement.height > MAX_RESIZED_PIXELS
        resize = self._resize_region if extreme else self._resize
        pixels, notes = self._pack(resize(image, placement, self._filter, decoded.extent)), [decoded.unusual]
        colors = dict[str, str]()
        for one, encoded in zip(self._recipe.paired, paired, strict=True):
            other = self._decode_paired(one, encoded, decoded, box)
            notes.append(other.unusual)
            colors |= {f"{one.name}: index {index}": color for index, color in other.colors.items()}
            filter_, mode = (Resampling.NEAREST, "L") if one.channels == 1 else (self._filter, "RGB")
            pixels += resize(other.image, placement, filter_, other.extent).tobytes("raw", mode)
        if _may_have_exif(data):
            notes.append(unusual.ignored_rotation(data, apply=self._recipe.exif == "apply"))
        notes += [unusual.misnamed(decoded.format, entry.text), "extreme shape" if extreme else ""]
        pixels_of_box = ",".join(map(str, decoded.box)) if decoded.box else ""
        digest = xxhash.xxh3_64_intdigest(data)
        size, noted = (decoded.width, decoded.height), unusual.joined(*notes)
        return Row(pixels, *size, noted, digest, turn=decoded.turn, box=pixels_of_box, colors=colors)

    def _annotated_turn(self, data: bytes, annotated: Sequence[float]) -> int:
        """Return the EXIF orientation to apply before boxes for this size fit the image; 1 for none."""
        turn = unusual.annotated_turn(data, annotated) if annotated and _may_have_exif(data) else 1
        if turn != 1 and self._recipe.exif == "ignore":
            width, height = annotated
            raise Undecodable(f"its boxes are for the upright image ({width:g}x{height:g} pixels); pass --exif apply")
        return turn

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
            turn = unusual.orientation(data) if self._recipe.exif == "apply" else 1
        decoded = unusual.decode_mask(data) if mask else self._decode_whole(data, box, turn)
        if box is not None or decoded.scale < 1:
            part = pixel_box(box or WHOLE_BOX, decoded.width, decoded.height)
            left, top, right, bottom = (edge * decoded.scale for edge in part)
            image = decoded.image.crop((x := int(left), y := int(top), math.ceil(right), math.ceil(bottom)))
            wide, high = image.size
            extent = ((left - x) / wide, (top - y) / high, (right - x) / wide, (bottom - y) / high)
            decoded = replace(decoded, image=image, extent=extent, box=part if box else None)
        if turn in unusual.TURNS:
            image, extent = decoded.image.transpose(unusual.TURNS[turn]), unusual.turned_box(decoded.extent, turn)
            return replace(decoded, image=image, extent=extent, turn=turn)
        return decoded

    def _decode_whole(self, data: bytes, box: Box | None, turn: int) -> DecodedImage:
        """Decode an image before `box` is cut out and `turn` is applied."""
        reject = self._recipe.on_damaged == "reject"
        try:
            return self._decode_jpeg(data, box, turn) or unusual.decode(data, self._recipe.levels, reject=reject)
        except Undecodable as problem:
            if self._recipe.on_damaged != "keep-truncated" or not str(problem).startswith("truncated"):
                raise
            decoded = unusual.decode(data, self._recipe.levels, truncated=True)
            return replace(decoded, unusual=unusual.joined(decoded.unusual, str(problem)))

    def _decode_jpeg(self, data: bytes, box: Box | None, turn: int) -> DecodedImage | None:
        """Decode a JPEG that simplejpeg can decode, damaged or not; return None for other images."""
        header = _jpeg_header(data)
        if header is None:
            return None
        width, height, colors, sampling = header
        check_size(width, height)
        note = "gray" if colors == "Gray" else ""
        denominator = self._denominator(width, height, sampling, box, turn) if self._recipe.scaled_decode else 1
        least = (-(-width // denominator), -(-height // denominator))
        pixels = self._jpeg_pixels(data, width, height, least)
        if isinstance(pixels, str) and "bad ICC marker" in pixels:  # no pixels depend on it
            data, note = without_color_profile(data), unusual.joined(note, "damaged color profile")
            pixels = self._jpeg_pixels(data, width, height, least)
        if isinstance(pixels, str) and pixels.startswith("Premature end"):
            complaint, ended = pixels, unusual.with_end_marker(data)
            pixels = self._jpeg_pixels(ended, width, height, least) if ended else complaint
            if isinstance(pixels, str):
                raise Undecodable(f"truncated: {complaint}")
            note = unusual.joined(note, "no end marker")
        if isinstance(pixels, str):
            image, damage = unusual.decode_damaged_jpeg(data, pixels, reject=self._recipe.on_damaged == "reject")
            return DecodedImage(image, width, height, "JPEG", unusual.joined(note, damage))
        # If the blocks of a JPEG extend beyond the image, a scaled pixel at the edge may cover hidden ones.
        if width % denominator:
            pixels[:, -1] = pixels[:, -2]
        if height % denominator:
            pixels[-1] = pixels[-2]
        image = Image.frombuffer("RGBX", pixels.shape[1::-1], pixels, "raw", "RGBX", 0, 1)
        return DecodedImage(image, width, height, "JPEG", note, scale=1 / denominator)

    def _denominator(self, width: int, height: int, sampling: str, box: Box | None, turn: int) -> int:
        """Return 8, 4 or 2 if decoding at this fraction leaves at least twice the size to resize to, else 1.

        3/8 is slower than 1/2, and 5/8 to 7/8 are slower than 1. Their pixels would also mix whole blocks of the JPEG,
        where those of 1/2, 1/4 and 1/8 are means of the pixels that they cover. A fraction is left out if visible
        pixels would share a color with hidden ones.
        """
        left, top, right, bottom = pixel_box(box, width, height) if box else (0, 0, width, height)
        placement = fit_to(self._recipe.fit, upright((right - left, bottom - top), turn), self._row_size)
        across, down = upright((placement.width, placement.height), turn)
        least_width, least_height = 2 * across * width // (right - left), 2 * down * height // (bottom - top)
        fitting = (n for n in (8, 4, 2) if -(-width // n) >= least_width and -(-height // n) >= least_height)
        columns, rows = SHARED_COLOR.get(sampling, (0, 0))
        whole = (n for n in fitting if width % max(n * columns, 1) == height % max(n * rows, 1) == 0)
        return next(whole, 1) if min(width, height) >= LEAST_SCALED else 1

    def _decode_paired(self, one: Paired, data: bytes, decoded: DecodedImage, box: Box | None) -> DecodedImage:
        """Decode a mask or second image, and cut and rotate it like its image `decoded`."""
        try:
            unusual.check_unturned(data)
            own_turn = unusual.orientation(data) if _may_have_exif(data) else 1
            is_other = own_turn not in (1, decoded.turn)
            if is_other and self._recipe.exif == "apply":
                found = f"EXIF orientation {own_turn}, but its image has {decoded.turn}"
                raise Undecodable(f"{found}; save both upright, without an orientation")
            other = self.decode(data, box, turn=decoded.turn, mask=one.channels == 1)
            if (other.width, other.height) != (decoded.width, decoded.height):
                sizes = f"{other.width}x{other.height} pixels, but its image has {decoded.width}x{decoded.height}"
                raise Undecodable(f"{sizes}; expected equal sizes")
        except Undecodable as problem:
            raise Undecodable(f"{one.name}: {problem}") from None
        note = f"{one.name}: EXIF orientation ignored" if is_other else ""
        own_notes = f"{one.name}: {other.unusual}" if other.unusual else ""
        return replace(other, unusual=unusual.joined(own_notes, note))

    def _mapped(self, decoded: DecodedImage, entry: Entry) -> Image.Image:
        assert self._map is not None
        label = self._label_of(entry)
        class_name = self._class_names[label]
        sample = MapSample(entry.text, label, class_name, decoded.width, decoded.height, decoded.box)
        made = self._map(np.array(decoded.image.convert("RGB")), sample)
        check_size(made.shape[1], made.shape[0])
        return Image.fromarray(made)

    def _resize_region(self, image: Image.Image, placement: Placement, filter_: Resampling, extent: Box) -> Image.Image:
        begin, first, end, last = (edge * side for edge, side in zip(extent, image.size * 2, strict=True))
        across, down = (end - begin) / placement.width, (last - first) / placement.height
        left, top = max(placement.left, 0), max(placement.top, 0)
        width, height = min(placement.width, self._row_size[0]), min(placement.height, self._row_size[1])
        begin, first = begin + left * across, first + top * down
        box = (begin, first, begin + width * across, first + height * down)
        region = image.resize((width, height), filter_, box=box)
        return region if region.size == self._row_size else self._padded(region, placement)


@dataclass(frozen=True)
class Placement:
    """Resize to (width, height), then take the window of the row's size whose corner is at (left, top).

    With fit "pad", left and top are negative or 0: the resized image is inside the row.
    """

    width: int
    height: int
    left: int
    top: int


@lru_cache(maxsize=4096)
def fit_to(fit: str, source: tuple[int, int], row: tuple[int, int]) -> Placement:
    """Return the Placement of a source (width, height) to a row (width, height).

    "crop" gives the integers of torchvision's Resize(size) and CenterCrop(size) on a PIL image: the long side is
    int(size * long / short), the corner is int(round(excess / 2.0)) with Python's round-half-to-even
    (torchvision.transforms.functional: _compute_resized_output_size and center_crop).
    """
    (w, h), (row_w, row_h) = source, row
    if fit == "stretch":
        return Placement(row_w, row_h, 0, 0)
    width_leads = row_w * h >= row_h * w if fit == "crop" else row_w * h <= row_h * w
    if width_leads:
        width, height = row_w, max(1, int(row_w * h / w))
    else:
        width, height = max(1, int(row_h * w / h)), row_h
    if fit == "crop":
        return Placement(width, height, round((width - row_w) / 2.0), round((height - row_h) / 2.0))
    return Placement(width, height, -((row_w - width) // 2), -((row_h - height) // 2))


def pixel_box(box: Box, width: int, height: int) -> PixelBox:
    """Return the pixels that a box touches, as (left, top, right, bottom); right and bottom are exclusive."""
    left = min(math.floor(box[0] * width + _ALMOST), width - 1)
    top = min(math.floor(box[1] * height + _ALMOST), height - 1)
    right = min(math.ceil(box[2] * width - _ALMOST), width)
    bottom = min(math.ceil(box[3] * height - _ALMOST), height)
    return (left, top, max(right, left + 1), max(bottom, top + 1))


def _jpeg_header(data: bytes) -> tuple[int, int, str, str] | None:
    """Return width, height, colors and sampling of a JPEG that simplejpeg decodes to RGBX; None for other images."""
    if not data.startswith(JPEG_START):
        return None
    try:
        height, width, colors, sampling = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # simplejpeg raises KeyError for a header without a color space
        return None
    return (width, height, colors, sampling) if colors in ("YCbCr", "RGB", "Gray") else None


def _may_have_exif(data: bytes) -> bool:
    """Return False for a JPEG without EXIF, which would come before its quantization tables, or a PNG without any.

    Pillow would decode a PNG to find out. Return True for all others.
    """
    if data.startswith(PNG_START):
        return any(word in data for word in EXIF_IN_PNG)
    return not data.startswith(JPEG_START) or data.find(b"Exif\0\0", 0, data.find(b"\xff\xdb")) >= 0
