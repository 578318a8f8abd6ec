"""The reasons why an image cannot be decoded, as rejects.tsv gives them."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib

from PIL import Image, TiffTags, UnidentifiedImageError, features

from decodeonce.prep.listing import Undecodable

MAX_PIXELS = 178_956_970  # Pillow's limit for a decompression bomb
# What Pillow's plugins raise if the content does not match its header.
BAD_CONTENT = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,  # of libavif
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
INTERLEAVE = "save it with interleaved channels, for example with tiffcp -p contig"
THREE_BANDS = "gdal_translate -b 1 -b 2 -b 3 -co PHOTOMETRIC=RGB IN OUT"
BIG_TIFF = (b"II+\0", b"MM\0+")
# Formats by their first bytes. A file that begins like this may still be broken.
SIGNATURES = {
    b"\xff\xd8": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    **dict.fromkeys(BIG_TIFF, "TIFF"),
    **dict.fromkeys((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), "PPM"),
}
UNREAD = {
    b"\0\0\0\x0cjP  ": "JPEG 2000, which is not supported",
    b"\xff\x4f\xff\x51": "JPEG 2000, which is not supported",
    b"\xff\x0a": "JPEG XL, which is not supported",
    b"\0\0\0\x0cJXL ": "JPEG XL, which is not supported",
    b"8BPS": "Photoshop, which is not supported",
    b"%PDF": "PDF, which is not supported",
    b"<svg": "SVG, which is not supported",
    b"version https://git-lfs": "a Git LFS pointer instead of the image, run: git lfs pull",
}
HEIC_BRANDS = (b"heic", b"heix", b"mif1", b"msf1")
REBUILD = "then reinstall it as docs/start/install.md says"  # the command depends on the machine; a store must not
NO_WEBP = f"WebP, and this Pillow was built without it: install libwebp-dev (Fedora, RHEL: libwebp-devel), {REBUILD}"
NO_AVIF = (
    "AVIF, which this Pillow does not read: Pillow 11.3 and later do, pillow-simd only if it is built with libavif"
)
NO_TIFF = f"compressed TIFF, and this Pillow was built without libtiff: install libtiff-dev or libtiff-devel, {REBUILD}"
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 (ITU T.81, table B.1)
START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9
APP2, APP15 = 0xE2, 0xEF  # segments of applications; ICC profiles are in the former
LOSSLESS = (0xC3, 0xCB)
BASELINE = (0xC0, 0xC1)
SEQUENTIAL, PROGRESSIVE = (*BASELINE, 0xC9), (0xC2, 0xCA)
AFTER_SCAN = re.compile(rb"\xff[^\0\xd0-\xd7\xff]")  # a marker that can follow the pixels of a scan
MISSING_SCANS = "its last scans are missing"
BARE = frozenset((0x00, 0x01, *range(0xD0, 0xD8)))  # markers without a length


def check_size(width: int, height: int) -> None:
    """Raise Undecodable if an image of this size has no pixels, or more than MAX_PIXELS."""
    if not 0 < width * height <= MAX_PIXELS:
        if width < 1 or height < 1:
            raise Undecodable(f"{width}x{height} pixels")
        raise Undecodable(f"decompression bomb: {width}x{height} pixels, more than {MAX_PIXELS}")


def reason(data: bytes, error: Exception) -> str:
    """Return why these bytes could not be decoded, given the exception of the last decoder."""
    if isinstance(error, Image.DecompressionBombError):
        return f"decompression bomb: {str(error).partition(',')[0]}"
    found = _format(data)
    complaint = _complaint(error, found)
    if not found:
        return _unread(data)
    if found == "WEBP" and not features.check("webp"):
        return NO_WEBP
    if found == "AVIF" and not reads_avif():
        return NO_AVIF
    if complaint == "decoder libtiff not available":
        return NO_TIFF
    if found == "JPEG" and _frame_at(data) is None:
        return "truncated: ends within the JPEG header"
    if isinstance(error, UnidentifiedImageError):
        complaint = _header_complaint(data, found)
    return _broken(data, found, complaint)


def _unread(data: bytes) -> str:
    """Return why a file is not read that begins like none of the formats that are read."""
    if data[4:8] == b"ftyp" and len(data) >= 12:
        kind = "HEIC" if data[8:12] in HEIC_BRANDS else f"HEIF or video of the brand {data[8:12]!r}"
        return f"{kind}, which is not supported: convert it to JPEG, for example with heif-convert"
    if data[128:132] == b"DICM":
        return "DICOM, which is not supported: convert it to PNG as docs/how-to/data/x-rays.md says"
    if data[:99].removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "an HTML page instead of the image"
    return _by_start(data, UNREAD) or f"not an image: begins with {data[:8]!r}"


def _broken(data: bytes, found: str, complaint: str) -> str:
    if complaint == "Unsupported BMP bitfields layout":
        return "BMP with bit fields that Pillow does not read: save it as PNG, for example with ImageMagick's convert"
    if complaint == "Invalid value for samples per pixel":
        return f"TIFF with more bands than Pillow reads: keep three, for example with {THREE_BANDS}"
    if "truncated" in complaint.lower():
        return f"truncated: {complaint}"
    if data.startswith(BIG_TIFF):
        return f"broken BigTIFF: {complaint}; if other programs read it, convert it to TIFF, for example with tiffcp"
    return f"broken {found}: {complaint}"


def _format(data: bytes) -> str:
    """Return the readable format whose signature the content begins with; "" for none."""
    # The first box of a file like AVIF and HEIC names what can read it (ISO/IEC 14496-12).
    brands = data[8 : int.from_bytes(data[:4], "big")] if data[4:8] == b"ftyp" else b""
    if b"avif" in brands or b"avis" in brands:
        return "AVIF"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else _by_start(data, SIGNATURES)


def _complaint(error: Exception, found: str) -> str:
    """Return the text of an exception; for a tag that a TIFF lacks, the KeyError has only its number."""
    cause = (error.__cause__ or error) if found == "TIFF" else None  # Image.OPEN makes a SyntaxError of a KeyError
    if isinstance(cause, KeyError) and isinstance(tag := cause.args[0], int):
        return f"the tag {TiffTags.lookup(tag).name} ({tag}) is missing"
    if cause and str(error) == "unknown pixel mode":
        return f"{error}: its bands are declared as something else than RGB; keep three, for example with {THREE_BANDS}"
    if isinstance(cause, IndexError):  # Pillow 13 for separate planes and a band of no declared meaning
        return f"{cause}; if other programs read it, {INTERLEAVE}"
    return str(error) or type(error).__name__


def _by_start(data: bytes, names: dict[bytes, str]) -> str:
    return next((name for start, name in names.items() if data.startswith(start)), "")


def _header_complaint(data: bytes, found: str) -> str:
    """Return what Pillow says about a header that it cannot read. Image.open() gives a memory address instead."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.OPEN[found][0](io.BytesIO(data), "")
    except BAD_CONTENT as error:
        return _complaint(error, found)
    return "its header cannot be read"


def reads_avif() -> bool:
    """Return whether the installed PIL reads AVIF. Older ones do not know this feature."""
    return "avif" in features.modules and bool(features.check("avif"))


def is_lossless(data: bytes) -> bool:
    """Return whether a JPEG's frame header says that it is lossless."""
    frame = _frame_at(data)
    return frame is not None and data[frame + 1] in LOSSLESS


def has_single_scan(data: bytes) -> bool:
    """Return whether a JPEG has Huffman-coded pixels in one scan, in which libjpeg notices a missing end."""
    frame = _frame_at(data)
    if frame is None or data[frame + 1] not in BASELINE or frame + 10 > len(data):
        return False
    after = frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")
    scan = _find_marker(data, after, frozenset({START_OF_SCAN}))
    return scan is not None and data[scan + 4 : scan + 5] == data[frame + 9 : frame + 10]


def lacks_scans(data: bytes) -> bool:
    """Return whether a JPEG that libjpeg decodes ends before the scans with the last bits of some coefficients.

    libjpeg does not warn about it, and its versions smooth such images differently.
    """
    frame = _frame_at(data)
    if frame is None or data[frame + 1] not in (*SEQUENTIAL, *PROGRESSIVE):
        return False
    place = frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")
    missing = dict.fromkeys(data[frame + 10 : place : 3], (1 << 64) - 1)  # a bit for each coefficient of a channel
    while any(missing.values()):
        after = AFTER_SCAN.search(data, place)
        scan = _find_marker(data, after.start(), frozenset({START_OF_SCAN, END_OF_IMAGE})) if after else None
        if scan is None or data[scan + 1] == END_OF_IMAGE:
            return True
        place = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")
        first, last, precision = data[place - 3 : place] if data[frame + 1] in PROGRESSIVE else (0, 63, 0)
        for channel in data[scan + 5 : place - 3 : 2] if precision & 15 == 0 else b"":
            missing[channel] = missing.get(channel, 0) & ~((2 << last) - (1 << first))
    return False


def without_color_profile(data: bytes) -> bytes:
    """Return a JPEG whose segments of an ICC profile are hidden, because libjpeg reports only the first problem."""
    hidden, place = bytearray(data), 2
    wanted = frozenset({APP2, START_OF_SCAN})
    while (found := _find_marker(data, place, wanted)) is not None and data[found + 1] == APP2:
        hidden[found + 1] = APP15
        place = found + 2 + int.from_bytes(data[found + 2 : found + 4], "big")
    return bytes(hidden)


def _frame_at(data: bytes) -> int | None:
    """Return the offset of the frame header, first scan or end marker, whichever is first; None if the data end."""
    return _find_marker(data, 2, FRAMES | {START_OF_SCAN, END_OF_IMAGE})


def _find_marker(data: bytes, place: int, wanted: frozenset[int]) -> int | None:
    while place + 4 <= len(data) or data[place : place + 2] == b"\xff\xd9":
        marker = data[place + 1]
        if data[place] != 0xFF or marker == 0xFF:  # garbage, or a fill byte
            place += 1
        elif marker in wanted:
            return place
        elif marker in BARE:
            place += 2
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None
