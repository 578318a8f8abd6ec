"""Find the reason why decoding failed, as rejects.tsv gives it."""

from __future__ import annotations

import io
import struct
import warnings

from PIL import Image, TiffImagePlugin, UnidentifiedImageError, features

LIBJPEG_SIDE = 65500  # libjpeg's limit, in pixels
# Formats by their first bytes. A file that begins like this may still be broken.
SIGNATURES = {
    b"\xff\xd8": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    **dict.fromkeys((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), "PPM"),
}
LFS_POINTER = "a Git LFS pointer instead of the image"
UNREAD = {
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL",
    b"8BPS": "Photoshop",
    b"%PDF": "PDF",
    b"<svg": "SVG",
    b"version https://git-lfs": LFS_POINTER,
}
AVIF_BRANDS = {b"avif", b"avis"}
UNREAD_BRANDS = {b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIC", b"msf1": "HEIC"}
REBUILD = "then reinstall it as docs/start/install.md says"  # the command depends on the machine; a store must not
NO_WEBP = f"WebP, and this Pillow was built without it: install libwebp-dev (Fedora, RHEL: libwebp-devel), {REBUILD}"
NO_AVIF = (
    "AVIF, which this Pillow does not read: Pillow 11.3 and later do, pillow-simd only if it is built with libavif"
)
NO_TIFF = f"compressed TIFF, and this Pillow was built without libtiff: install libtiff-dev or libtiff-devel, {REBUILD}"
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15 (ITU T.81, table B.1)
START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9
TIFF_BITS, TIFF_PHOTOMETRIC = 258, 262
LOSSLESS = (0xC3, 0xCB)
BASELINE = (0xC0, 0xC1)
HIERARCHICAL = (0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF)
BARE = frozenset((0x00, 0x01, *range(0xD0, 0xD8)))  # markers without a length


def reason(data: bytes, error: Exception) -> str:
    """Return why these bytes could not be decoded, given the exception of the last decoder."""
    if isinstance(error, Image.DecompressionBombError):
        return f"decompression bomb: {str(error).partition(',')[0]}"
    found = format_of(data)
    if not found:
        name = _unread(data)
        advice = "run: git lfs pull" if name == LFS_POINTER else "which is not read"
        return f"{name}, {advice}" if name else f"not an image: begins with {data[:8]!r}"
    complaint = str(error) or type(error).__name__
    if missing := _missing_library(found, complaint):
        return missing
    if found == "JPEG" and (special := _special_jpeg(data)):
        return special
    if isinstance(error, UnidentifiedImageError):  # its text contains a memory address
        special = _special_tiff(data) if found == "TIFF" else ""
        return special or f"broken {found}: its header cannot be read"
    return f"truncated: {complaint}" if "truncated" in complaint.lower() else f"broken {found}: {complaint}"


def _missing_library(found: str, complaint: str) -> str:
    """Return what to install if PIL was built without the library that reads a format; "" if it was not."""
    if found == "WEBP" and not features.check("webp"):
        return NO_WEBP
    if found == "AVIF" and not reads_avif():
        return NO_AVIF
    return NO_TIFF if complaint == "decoder libtiff not available" else ""


def format_of(data: bytes) -> str:
    """Return the readable format whose signature the content begins with; "" for none."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[4:8] == b"ftyp" and not AVIF_BRANDS.isdisjoint(_brands(data)):
        return "AVIF"
    return next((name for start, name in SIGNATURES.items() if data.startswith(start)), "")


def _brands(data: bytes) -> list[bytes]:
    """Return the brands in the first box of a file like AVIF and HEIC (ISO/IEC 14496-12), the major one first."""
    end = min(int.from_bytes(data[:4], "big"), 256)
    return [data[8:12], *(data[at : at + 4] for at in range(16, end, 4))]


def reads_avif() -> bool:
    """Return whether the installed PIL reads AVIF. Older ones do not know this feature."""
    return "avif" in features.modules and bool(features.check("avif"))


def _unread(data: bytes) -> str:
    if data[4:8] == b"ftyp":
        return UNREAD_BRANDS.get(data[8:12], "")
    return next((name for start, name in UNREAD.items() if data.startswith(start)), "")


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


def _special_jpeg(data: bytes) -> str:
    """Return why a JPEG cannot be decoded, judged by its frame header; "" if the header is ordinary."""
    frame = _frame_at(data)
    marker = None if frame is None else data[frame + 1]
    if marker in (START_OF_SCAN, END_OF_IMAGE):
        return "broken JPEG: no image in it"
    if frame is None or frame + 10 > len(data):
        return "truncated: ends within the JPEG header"
    bits, height, width, channels = struct.unpack_from(">BHHB", data, frame + 4)
    if not (0 < width <= LIBJPEG_SIDE and 0 < height <= LIBJPEG_SIDE):
        return f"broken JPEG: {width}x{height} pixels"
    if bits != 8:
        return f"{bits}-bit JPEG; only 8 bits a channel are read"
    if marker in LOSSLESS:
        return "lossless JPEG, of which only RGB is read"
    if marker in HIERARCHICAL:
        return "hierarchical JPEG, which is not read"
    return "" if channels in (1, 3, 4) else f"JPEG of {channels} channels, expected 1, 3 or 4"


def _special_tiff(data: bytes) -> str:
    """Return why a valid TIFF cannot be decoded, judged by its first directory; "" if that is broken or ordinary."""
    try:
        directory, file = TiffImagePlugin.ImageFileDirectory_v2(data[:8]), io.BytesIO(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file.seek(directory.next)
            directory.load(file)
        bits, photometric = directory.get(TIFF_BITS, (1,)), directory.get(TIFF_PHOTOMETRIC, 0)
    except (OSError, SyntaxError, ValueError, LookupError, TypeError, ArithmeticError, struct.error):
        return ""
    kinds = ("white is 0", "black is 0", "RGB", "palette")
    if not isinstance(photometric, int) or not all(isinstance(each, int) for each in bits):
        return ""
    if set(bits) <= {1, 2, 4, 8, 16} and photometric in range(len(kinds)):
        return ""
    kind = kinds[photometric] if photometric in range(len(kinds)) else f"photometric {photometric}"
    order = "big-endian" if data[:2] == b"MM" else "little-endian"
    return f"{order} TIFF of {bits[0]} bits a channel ({kind}), which Pillow does not read; save it with 8 or 16 bits"


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
