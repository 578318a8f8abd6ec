"""The kernels of `fused.py`, in Triton's language. Only `fused.py` imports this, because not every torch has Triton."""

import triton
import triton.language as tl

from decodeonce.store import hashing
from decodeonce.store.hashing import signed

FACTOR_1 = tl.constexpr(signed(hashing.FACTOR_1))
FACTOR_2 = tl.constexpr(signed(hashing.FACTOR_2))
GOLDEN = tl.constexpr(signed(hashing.GOLDEN))


@triton.jit
def load_value(plane, width, line, column, exists, PIXELS: tl.constexpr):
    """Load the values of pixels from a plane of this width, as float32."""
    if PIXELS == "bc4":
        block = plane + ((line // 4) * (width // 4) + column // 4) * 8
        high = tl.load(block, mask=exists, other=0).to(tl.int32)
        low = tl.load(block + 1, mask=exists, other=0).to(tl.int32)
        bit = (line % 4) * 12 + (column % 4) * 3
        byte = block + 2 + bit // 8
        bits = tl.load(byte, mask=exists, other=0).to(tl.int32)
        bits |= tl.load(byte + 1, mask=exists & (bit % 8 > 5), other=0).to(tl.int32) << 8
        number = (bits >> (bit % 8)) & 7
        sevenths = tl.where(number == 0, 7, tl.where(number == 1, 0, 8 - number))
        return (low + ((high - low) * sevenths + 3) // 7).to(tl.float32)
    return tl.load(plane + line * width + column, mask=exists, other=0).to(tl.float32)


@triton.jit
def load_pixel(base, height, width, line, column, exists, PIXELS: tl.constexpr):  # noqa: PLR0917 - as below
    """Load the three channels of pixels, R, G and B or Y, U and V, as float32."""
    if PIXELS == "rgb":
        first = base + (line * width + column) * 3
        one = tl.load(first, mask=exists, other=0).to(tl.float32)
        two = tl.load(first + 1, mask=exists, other=0).to(tl.float32)
        three = tl.load(first + 2, mask=exists, other=0).to(tl.float32)
    else:
        size = height * width
        if PIXELS == "bc4":
            size = size // 2
        one = load_value(base, width, line, column, exists, PIXELS)
        two = load_value(base + size, width // 2, line // 2, column // 2, exists, PIXELS)
        three = load_value(base + size + size // 4, width // 2, line // 2, column // 2, exists, PIXELS)
    return one, two, three


@triton.jit
def move_pixels(  # noqa: PLR0913, PLR0917, PLR0915 - a kernel has no objects, and calls no functions
    images,
    stride,
    height,
    width,
    windows,
    moves,
    scales,
    shifts,
    out,
    resized_height,
    resized_width,
    out_height,
    out_width,
    PIXELS: tl.constexpr,
    RESIZE: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute BLOCK pixels of an image, each with its three channels.

    The `images` are uint8 with `stride` bytes each, and with `height` lines of `width` pixels, held as PIXELS says. If
    that is not "rgb", their channels Y, U and V are resized and rounded before they become RGB. `out` is (B,
    out_height, out_width, 3). `moves`, float32 (B, 6), says where pixels come from, as `Moves` does: first those that
    the resize reads, then those of the result. With RESIZE, `windows`, floats (B, 4), are resized to `resized_height`
    and `resized_width`, and a pixel depends on at most TAPS_Y lines and TAPS_X columns. With NORMALIZE, `scales` and
    `shifts` are float32 (3,).
    """
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = pixel < out_height * out_width
    y = tl.minimum(pixel // out_width, out_height - 1)
    x = pixel % out_width
    base = images + image * stride
    move = moves + image * 6
    y = tl.load(move + 3) + y
    x = tl.load(move + 4) + tl.load(move + 5) * x
    if RESIZE:
        top = tl.load(windows + image * 4).to(tl.float32)
        left = tl.load(windows + image * 4 + 1).to(tl.float32)
        box_height = tl.load(windows + image * 4 + 2).to(tl.float32)
        box_width = tl.load(windows + image * 4 + 3).to(tl.float32)
        read_top = tl.load(move)
        read_left = tl.load(move + 1)
        sign = tl.load(move + 2)
        scale_y = box_height / resized_height
        scale_x = box_width / resized_width
        middle_y = top + (y + 0.5) * scale_y
        middle_x = left + (x + 0.5) * scale_x
        reach_y = tl.maximum(scale_y, 1.0)
        reach_x = tl.maximum(scale_x, 1.0)
        first_y = tl.floor(middle_y - reach_y + 0.5)
        first_x = tl.floor(middle_x - reach_x + 0.5)
        share_y = 1.0 / reach_y
        share_x = 1.0 / reach_x
        red = tl.zeros([BLOCK], tl.float32)
        green = tl.zeros([BLOCK], tl.float32)
        blue = tl.zeros([BLOCK], tl.float32)
        sum_y = tl.zeros([BLOCK], tl.float32)
        sum_x = tl.zeros([BLOCK], tl.float32)
        for j in tl.static_range(TAPS_X):
            column = first_x + j
            weight = tl.maximum(1.0 - tl.abs(column + 0.5 - middle_x) * share_x, 0.0)
            sum_x += tl.where((column >= left) & (column < left + box_width), weight, 0.0)
        for i in range(TAPS_Y):
            line = first_y + i
            in_line = exists & (line >= top) & (line < top + box_height)
            weight_y = tl.maximum(1.0 - tl.abs(line + 0.5 - middle_y) * share_y, 0.0)
            weight_y = tl.where(in_line, weight_y, 0.0)
            sum_y += weight_y
            read_line = (read_top + line).to(tl.int32)
            for j in tl.static_range(TAPS_X):
                column = first_x + j
                used = in_line & (column >= left) & (column < left + box_width)
                weight = tl.maximum(1.0 - tl.abs(column + 0.5 - middle_x) * share_x, 0.0) * weight_y
                read_column = (read_left + sign * column).to(tl.int32)
                first, second, third = load_pixel(base, height, width, read_line, read_column, used, PIXELS)
                red += weight * first
                green += weight * second
                blue += weight * third
        whole = 1.0 / tl.where(exists, sum_y * sum_x, 1.0)
        red = tl.minimum(tl.floor(red * whole + 0.5), 255.0)  # halves up, as on a CPU
        green = tl.minimum(tl.floor(green * whole + 0.5), 255.0)
        blue = tl.minimum(tl.floor(blue * whole + 0.5), 255.0)
    else:
        red, green, blue = load_pixel(base, height, width, y.to(tl.int32), x.to(tl.int32), exists, PIXELS)
    if PIXELS != "rgb":  # as in `planes.to_rgb`; all numbers are exact
        u = green - 128.0
        v = blue - 128.0
        green = red + tl.floor((32.0 - 22.0 * u - 46.0 * v) / 64)
        blue = red + tl.floor((32.0 + 113.0 * u) / 64)
        red = red + tl.floor((32.0 + 90.0 * v) / 64)
        red = tl.minimum(tl.maximum(red, 0.0), 255.0)
        green = tl.minimum(tl.maximum(green, 0.0), 255.0)
        blue = tl.minimum(tl.maximum(blue, 0.0), 255.0)
    if NORMALIZE:
        red = red * tl.load(scales) + tl.load(shifts)
        green = green * tl.load(scales + 1) + tl.load(shifts + 1)
        blue = blue * tl.load(scales + 2) + tl.load(shifts + 2)
    target = out + (image * out_height * out_width + pixel) * 3
    tl.store(target, red.to(out.dtype.element_ty), mask=exists)
    tl.store(target + 1, green.to(out.dtype.element_ty), mask=exists)
    tl.store(target + 2, blue.to(out.dtype.element_ty), mask=exists)


@triton.jit
def mix_words(words):
    """Mix int64 words, as `mix_words` of `augment.py` does."""
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * FACTOR_1
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * FACTOR_2
    return words ^ ((words >> 31) & 0x1FFFFFFFF)


@triton.jit
def uniform_number(row, number, key):
    """Uniform number `number` of `row`, float32, as `Draws.uniform` draws it."""
    words = mix_words(row ^ key) + GOLDEN
    words = mix_words(words ^ number)
    return ((words >> 40) & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08


@triton.jit(do_not_specialize=["key"])
def draw_uniform(rows, out, key, row_count, count, BLOCK: tl.constexpr):
    """Draw `count` numbers for each row into `out`, float32 (B, count)."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = place < row_count * count
    row = tl.load(rows + place // count, mask=exists, other=0)
    number = (place % count).to(tl.int64)
    tl.store(out + place, uniform_number(row, number, key), mask=exists)


@triton.jit(do_not_specialize=["key"])
def draw_windows(rows, limits, out, key, TRIES: tl.constexpr, LANES: tl.constexpr):
    """Draw the window of a row into `out`, float64 (B, 4), as `RandomResizedCrop.windows` does.

    The `limits`, float64 (8,), are the smallest area and the range of areas, the same of the logarithms of the ratios,
    height and width of the images, and height and width of the window if no size fits.
    """
    image = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + image)
    lane = tl.arange(0, LANES).to(tl.int64)
    area = uniform_number(row, lane, key).to(tl.float64)
    ratio = uniform_number(row, lane + TRIES, key).to(tl.float64)
    height = tl.load(limits + 4)
    width = tl.load(limits + 5)
    area = (tl.load(limits) + tl.load(limits + 1) * area) * (height * width)
    ratio = tl.exp2(tl.load(limits + 2) + tl.load(limits + 3) * ratio)
    tall = area / ratio
    wide = area * ratio
    tall = (tall * tl.rsqrt(tall) + 0.5).to(tl.int64).to(tl.float64)
    wide = (wide * tl.rsqrt(wide) + 0.5).to(tl.int64).to(tl.float64)
    fits = (lane < TRIES) & (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
    first = tl.min(tl.where(fits, lane, TRIES), 0)
    tall = tl.sum(tl.where(lane == first, tall, 0.0), 0)
    wide = tl.sum(tl.where(lane == first, wide, 0.0), 0)
    none = first == TRIES
    tall = tl.where(none, tl.load(limits + 6), tall)
    wide = tl.where(none, tl.load(limits + 7), wide)
    # Two numbers in one block, because this language has no scalars that were computed from a number of its own.
    vertical = lane == 0
    spare = tl.where(vertical, height - tall, width - wide)
    place = uniform_number(row, lane + 2 * TRIES, key).to(tl.float64)
    corner = tl.where(none, spare / 2, place * (spare + 1)).to(tl.int64).to(tl.float64)
    size = tl.where(vertical, tall, wide)
    tl.store(out + image * 4 + lane, corner, mask=lane < 2)
    tl.store(out + image * 4 + 2 + lane, size, mask=lane < 2)
