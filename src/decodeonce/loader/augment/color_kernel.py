"""The kernels of `fused_color.py`, in Triton's language.

The images are uint8 (B, H, W, 3) without gaps. `drawn` are the uniform numbers of each image, float32 (B, n).
"""

import triton
import triton.language as tl


@triton.jit
def drawn_from(drawn, ranges, number: tl.constexpr):
    """Draw from range `number` of `ranges`, float32 pairs of the lowest number and the width."""
    return tl.load(ranges + 2 * number) + tl.load(drawn + number) * tl.load(ranges + 2 * number + 1)


@triton.jit
def gray_of(red, green, blue):
    """Compute gray as `_gray` of `color.py` does: torch does not round these products, either."""
    return tl.fma(blue, 0.114, tl.fma(green, 0.587, red * 0.2989))


@triton.jit
def clamp_level(level):
    """Limit to 0..255."""
    return tl.minimum(tl.maximum(level, 0.0), 255.0)


@triton.jit
def blend_with(gray, level, factor):
    """Compute torch.lerp(gray, level, factor), limited to 0..255."""
    near = factor < 0.5
    return clamp_level(tl.fma(tl.where(near, factor, factor - 1.0), level - gray, tl.where(near, gray, level)))


@triton.jit
def hue_distance(turn):
    """Compute how far a channel's place on the circle is from its middle, as `_hue` of `color.py` does."""
    return tl.minimum(
        tl.maximum(tl.abs(turn - tl.floor(turn) - 0.3333333333333333), 0.16666666666666666), 0.3333333333333333
    )


@triton.jit
def jitter_pixels(  # noqa: PLR0913, PLR0915, PLR0917 - a kernel has no objects
    images,
    drawn,
    ranges,
    sums,
    out,
    p,
    pixels,
    SUM: tl.constexpr,
    CONTRAST: tl.constexpr,
    HUE: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Apply ColorJitter to BLOCK pixels.

    The `ranges`, float32 (8,), are those of brightness, contrast, saturation and hue, as in `drawn_from`. With SUM,
    only compute what the contrast needs: `sums`, float32 (B, blocks), of the gray of the pixels before it. There are at
    most BLOCKS blocks. Without CONTRAST or HUE, this change is left out.
    """
    image = tl.program_id(0).to(tl.int64)
    drawn += image * 9
    brightness = drawn_from(drawn, ranges, 0)
    contrast = drawn_from(drawn, ranges, 1)
    saturation = drawn_from(drawn, ranges, 2)
    shift = drawn_from(drawn, ranges, 3) + 1.0
    first = tl.load(drawn + 4)
    second = tl.load(drawn + 5)
    third = tl.load(drawn + 6)
    fourth = tl.load(drawn + 7)
    chosen = tl.load(drawn + 8) < p
    # The place of each change: how many others have a smaller number.
    brightness_at = (second < first).to(tl.int32) + (third < first).to(tl.int32) + (fourth < first).to(tl.int32)
    contrast_at = (first <= second).to(tl.int32) + (third < second).to(tl.int32) + (fourth < second).to(tl.int32)
    saturation_at = (first <= third).to(tl.int32) + (second <= third).to(tl.int32) + (fourth < third).to(tl.int32)
    hue_at = (first <= fourth).to(tl.int32) + (second <= fourth).to(tl.int32) + (third <= fourth).to(tl.int32)
    changes = tl.where(chosen, 4, 0)
    if SUM:
        changes = tl.where(chosen, contrast_at, 0)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = pixel < pixels
    source = images + (image * pixels + pixel) * 3
    mean = 0.0
    if CONTRAST:
        block = tl.arange(0, BLOCKS)
        count = tl.num_programs(1)
        # Always in the same order, so that the last bits do not change from call to call.
        mean = tl.sum(tl.load(sums + image * count + block, mask=block < count, other=0.0), 0) / pixels
    red = tl.load(source, mask=exists, other=0).to(tl.float32)
    green = tl.load(source + 1, mask=exists, other=0).to(tl.float32)
    blue = tl.load(source + 2, mask=exists, other=0).to(tl.float32)
    for place in range(changes):
        if place == brightness_at:
            red = clamp_level(red * brightness)
            green = clamp_level(green * brightness)
            blue = clamp_level(blue * brightness)
        if CONTRAST and place == contrast_at:
            red = blend_with(mean, red, contrast)
            green = blend_with(mean, green, contrast)
            blue = blend_with(mean, blue, contrast)
        if place == saturation_at:
            gray = gray_of(red, green, blue)
            red = blend_with(gray, red, saturation)
            green = blend_with(gray, green, saturation)
            blue = blend_with(gray, blue, saturation)
        if HUE and place == hue_at:
            most = tl.maximum(tl.maximum(red, green), blue)
            spread = most - tl.minimum(tl.minimum(red, green), blue)
            others = tl.where(most == green, blue - red + 2.0 * spread, red - green + 4.0 * spread)
            turn = tl.where(most == red, green - blue, others) / (6.0 * tl.maximum(spread, 1e-30)) + shift
            least = most - 2.0 * spread
            red = least + 6.0 * spread * hue_distance(turn + 0.8333333333333334)
            green = least + 6.0 * spread * hue_distance(turn + 0.5)
            blue = least + 6.0 * spread * hue_distance(turn + 0.16666666666666666)
    if SUM:
        gray = tl.where(exists, gray_of(red, green, blue), 0.0)
        tl.store(sums + image * tl.num_programs(1) + tl.program_id(1), tl.sum(gray, 0))
    else:
        target = out + (image * pixels + pixel) * 3
        tl.store(target, (red + 0.5).to(tl.uint8), mask=exists)
        tl.store(target + 1, (green + 0.5).to(tl.uint8), mask=exists)
        tl.store(target + 2, (blue + 0.5).to(tl.uint8), mask=exists)


@triton.jit
def recolor_pixels(  # noqa: PLR0913, PLR0917 - as above
    images, drawn, out, p, threshold, pixels, GRAY: tl.constexpr, BLOCK: tl.constexpr
):
    """Apply RandomGrayscale to BLOCK pixels with GRAY, or else Solarize."""
    image = tl.program_id(0).to(tl.int64)
    chosen = tl.load(drawn + image) < p
    least = tl.where(chosen, threshold, 256.0)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = pixel < pixels
    place = (image * pixels + pixel) * 3
    red = tl.load(images + place, mask=exists, other=0).to(tl.float32)
    green = tl.load(images + place + 1, mask=exists, other=0).to(tl.float32)
    blue = tl.load(images + place + 2, mask=exists, other=0).to(tl.float32)
    if GRAY:
        gray = gray_of(red, green, blue)
        red = tl.where(chosen, gray, red)
        green = tl.where(chosen, gray, green)
        blue = tl.where(chosen, gray, blue)
    else:
        red = tl.where(red >= least, 255.0 - red, red)
        green = tl.where(green >= least, 255.0 - green, green)
        blue = tl.where(blue >= least, 255.0 - blue, blue)
    tl.store(out + place, red.to(tl.uint8), mask=exists)
    tl.store(out + place + 1, green.to(tl.uint8), mask=exists)
    tl.store(out + place + 2, blue.to(tl.uint8), mask=exists)


@triton.jit
def blur_pixels(  # noqa: PLR0913, PLR0917 - as above
    images,
    drawn,
    ranges,
    out,
    p,
    values,
    size,
    step,
    REACH: tl.constexpr,
    TAPS: tl.constexpr,
    ROUND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Apply GaussianBlur in one direction to BLOCK of the `values` of an image.

    In this direction there are `size` pixels, `step` values apart. A pixel depends on REACH pixels on each side, which
    are at most TAPS together. With ROUND, `out` is uint8.
    """
    image = tl.program_id(0).to(tl.int64)
    sigma = drawn_from(drawn + image * 2, ranges, 0)
    chosen = tl.load(drawn + image * 2 + 1) < p
    # Farther weights are below 2**-24 of the middle one: no sum in float32 changes.
    reach = tl.where(chosen, tl.minimum(sigma * 5.8 + 1.0, REACH), 0.0).to(tl.int32)
    offsets = tl.arange(0, TAPS) - REACH
    weights = tl.exp(-0.5 * (offsets / sigma) * (offsets / sigma))
    total = tl.sum(tl.where(tl.abs(offsets) <= reach, weights, 0.0), 0)
    value = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = value < values
    place = value // step % size
    source = images + image * values + (value - place * step)
    blurred = tl.zeros([BLOCK], tl.float32)
    if ROUND:
        blurred += 0.5
    for offset in range(-reach, reach + 1):
        distance = offset / sigma
        weight = tl.exp(-0.5 * distance * distance) / total
        other = tl.abs(place + offset)
        other = tl.minimum(other, 2 * (size - 1) - other)  # edges are reflected
        blurred += weight * tl.load(source + other * step, mask=exists, other=0).to(tl.float32)
    tl.store(out + image * values + value, blurred.to(out.dtype.element_ty), mask=exists)
