"""store.json, the description of a store, and stage.json, the range of rows that a staged part holds.

They are validated completely before any other file of the store is used.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from decodeonce.errors import StoreError
from decodeonce.formatting import quoted
from decodeonce.store.files import PAGE, read_regular
from decodeonce.store.format import CODECS, npy_header
from decodeonce.store.hashing import MAX_SIGNED_BYTES, parse_signed, sign
from decodeonce.store.layout import NOT_PAIRED, ContainerName, Json, Paired, PixelsName, image_bytes, missing_advice
from decodeonce.store.pixels import Pixels

FORMAT = "decodeonce"
VERSION = 1
PAIRED_VERSION = 2  # of stores whose rows hold more than an image: readers of version 1 must refuse them
PIXELS_VERSION = 3  # of stores whose images are not RGB: readers of versions 1 and 2 must refuse them
# The key that each of these versions added, and what is wrong with a manifest of the version that could do without.
ADDED_KEYS = {
    PAIRED_VERSION: ("paired", '"paired" is empty, expected a list of arrays'),
    PIXELS_VERSION: ("pixels", '"pixels" is missing or "rgb", expected another form'),
}
PART_FORMAT = "decodeonce-part"
PART_VERSION = 1
DATA_OFFSET = 4096
MAX_DATA_OFFSET = 1 << 20  # headers are read into memory
OFFSETS = f"a data_offset that is a multiple of {DATA_OFFSET} up to {MAX_DATA_OFFSET}"
# Large enough for storage with a high latency, and small enough for the processor's cache: a piece is hashed and
# written right after it was read.
PIECE_BYTES = 4 << 20
BOX_LABELS = "box_labels"  # the column of indexes into box_classes; -1 for none
# Suffixes of the kind of a source with boxes, and of one with masks or second images in other folders.
WITH_BOXES, WITH_PAIRED = "+boxes", "+paired"
BOX_COLUMNS = ("boxes", "box_count", BOX_LABELS)  # written by `prep build --keep-boxes`
REBUILD = "remove the store and build it again"
OPTIONAL_KEYS = {"box_classes", "decoder_crashes", "paired", "pixels"}  # all others must be present
# For the type of a field, the types that fit in its JSON, and what messages expect.
SCALARS: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "str"),
    int: ((int,), "an integer from 0 to 2**63 - 1"),
    float: ((int, float), "a number"),
}
_field_types: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@dataclass(frozen=True)
class Shard:
    """A file of images.

    Attributes:
        file: File name.
        first_row: Number of its first row in the store.
        rows: Number of rows.
        data_offset: Byte at which the first row begins.
        bytes: Size of the file.
        meta_xxh3: Digest of the header, the first `data_offset` bytes.

    Example:
        >>> shard = open_store("train.store").manifest.shards[0]
        >>> shard.file, shard.first_row, shard.rows, shard.data_offset
        ('images-00000.npy', 0, 64, 4096)
    """

    file: str
    first_row: int
    rows: int
    data_offset: int
    bytes: int
    meta_xxh3: str

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes."""
        return (self.bytes - self.data_offset) // self.rows

    def offset(self, row: int) -> int:
        """Return the byte of the file at which a row of the store begins."""
        return self.data_offset + (row - self.first_row) * self.row_bytes

    def held_rows(self, rows: range) -> range:
        """Return those of the store's `rows` that are in this shard."""
        return overlap(rows, range(self.first_row, self.first_row + self.rows))


@dataclass(frozen=True, eq=False)
class ImageClass:
    """A class of the store. It is equal to its name, so that ``store.classes[label] == "cat"`` works.

    Attributes:
        name: Name, such as a wnid or a folder.
        description: Description in words. Default: "".

    Example:
        >>> open_store("train.store").classes[3]
        ImageClass(name='n02123045', description='tabby, tabby cat')
    """

    name: str
    description: str = ""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self.name == other
        return isinstance(other, ImageClass) and (self.name, self.description) == (other.name, other.description)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Column:
    """A further array with one entry per row, stored as an npy file.

    Attributes:
        name: Name, the key in `Store.columns`.
        file: File name.
        dtype: NumPy dtype, such as "<f4".
        shape: Shape of one entry. The array has shape ``(count, *shape)``.

    Example:
        >>> add_column("train.store", "score", np.zeros(64, np.float32))
        Column(name='score', file='score.npy', dtype='<f4', shape=())
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SmallFile:
    """Size and digest of a file that is not a shard.

    Attributes:
        bytes: Size of the file.
        xxh3: xxh3_64 of the file, 16 hexadecimal digits.

    Example:
        >>> open_store("train.store").manifest.files["labels.npy"].bytes
        640
    """

    bytes: int
    xxh3: str


@dataclass(frozen=True)
class Manifest:
    """The contents of store.json, available as `Store.manifest`.

    Attributes:
        count: Number of rows.
        shape: (H, W, C) of an image.
        container: File format of the shards, "npy" or "hdf5".
        block_rows: Rows per block. A build decodes and writes the rows of a block together.
        shards: The shards in row order.
        classes: The classes in label order.
        pixel_mean: Mean of each channel, in 0..255. A build computes it from some lines of every row.
        pixel_std: Standard deviation of each channel, in 0..255, from the same lines.
        recipe: The settings, decoders and versions that determine the store's bytes.
        source: Kind of the source and digest of its listing.
        columns: The columns.
        files: Size and digest of every file except shards, by file name.
        box_classes: Class names of the column `box_labels` in label order. None if the manifest has no such key.
        decoder_crashes: Number of images that crashed a decoder, or took too long, during the build.
        paired: The masks and second images that follow the image in each row, in order.
        pixels: How a row holds its image: "rgb", "yuv420" in half the bytes, or "bc4" in a quarter.
        dtype: Dtype of the images, always "uint8".
        digest: xxh3_64 of everything else in store.json.

    Example:
        >>> manifest = open_store("train.store").manifest
        >>> manifest.count, manifest.shape, manifest.container
        (64, (256, 256, 3), 'npy')
    """

    count: int
    shape: tuple[int, int, int]
    container: ContainerName
    block_rows: int
    shards: tuple[Shard, ...]
    classes: tuple[ImageClass, ...]
    pixel_mean: tuple[float, ...]
    pixel_std: tuple[float, ...]
    recipe: Json
    source: Json
    columns: tuple[Column, ...]
    files: dict[str, SmallFile]
    box_classes: tuple[str, ...] | None = None
    decoder_crashes: int = 0
    paired: tuple[Paired, ...] = ()
    pixels: PixelsName = "rgb"
    dtype: Literal["uint8"] = "uint8"
    digest: str = field(default="", compare=False)

    @property
    def version(self) -> int:
        """Version of the format."""
        if self.pixels != "rgb":
            return PIXELS_VERSION
        return PAIRED_VERSION if self.paired else VERSION

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes."""
        height, width, _ = self.shape
        return image_bytes(self.pixels, self.shape) + height * width * sum(one.channels for one in self.paired)

    @property
    def rows_are_images(self) -> bool:
        """Whether a row is an RGB image alone, without paired arrays."""
        return self.pixels == "rgb" and not self.paired

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row in a shard: that of the image if `rows_are_images`, otherwise (bytes,)."""
        return self.shape if self.rows_are_images else (self.row_bytes,)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays of a row: of the image, named "images", and of each paired array."""
        height, width, _ = self.shape
        paired = {one.name: (height, width, 3) if one.channels == 3 else (height, width) for one in self.paired}
        return {"images": self.shape, **paired}

    def views(self, rows: Any) -> dict[str, Any]:
        """Return the arrays of a row or of several rows as views, as they are stored.

        `rows` holds their bytes, a NumPy array or a tensor uint8 (..., row_bytes). Only "rgb" images have their shape;
        others are (..., bytes).
        """
        shapes = self.shapes if self.pixels == "rgb" else {**self.shapes, "images": (-1,)}
        sizes = [image_bytes(self.pixels, self.shape), *map(math.prod, list(shapes.values())[1:])]
        parts = zip(shapes.items(), pairwise(accumulate(sizes, initial=0)), strict=True)
        return {name: rows[..., a:b].reshape(*rows.shape[:-1], *shape) for (name, shape), (a, b) in parts}

    def arrays(self, rows: Pixels) -> dict[str, Pixels]:
        """Return the arrays of a row or of several rows, with images as RGB. `rows` is uint8 (..., row_bytes)."""
        views: dict[str, Pixels] = self.views(rows)
        return views if self.pixels == "rgb" else {**views, "images": self.unpack(views["images"])}

    def unpack(self, images: Pixels, lines: slice = slice(None), out: Pixels | None = None) -> Pixels:
        """Return `lines` of stored images (..., bytes) as RGB (..., H, W, C), in `out` if it is given."""
        return CODECS[self.pixels].unpack(images, self.shape, lines, out)

    @property
    def rows_digest(self) -> str:
        """Digest of samples.tsv, which identifies the samples and their order.

        It stays the same in a copy with another image size or container, and when a column is added.
        """
        return self.files["samples.tsv"].xxh3

    @cached_property
    def _first_rows(self) -> NDArray[np.int64]:
        return np.array([shard.first_row for shard in self.shards], np.int64)

    def shard_indexes(self, rows: ArrayLike) -> NDArray[np.int64]:
        """Return the index of the shard of each row, in an array shaped like `rows`."""
        return self._first_rows.searchsorted(rows, side="right") - 1

    def shard_of(self, row: int) -> Shard:
        """Return the shard that contains a row."""
        return self.shards[int(self.shard_indexes(row))]

    @property
    def rows_per_piece(self) -> int:
        """The maximum number of rows in a piece."""
        step = max(1, PIECE_BYTES // self.row_bytes)
        whole_pages = PAGE // math.gcd(PAGE, self.row_bytes)
        return -(-step // whole_pages) * whole_pages if whole_pages <= 4 * step else step

    def pieces(self, rows: range) -> Iterator[tuple[Shard, range]]:
        """Yield pieces that cover `rows` in order, each for one thread: a shard, and consecutive rows of it.

        If a small number of rows fills whole pages, every piece except the first and last consists of whole pages.
        """
        step = self.rows_per_piece
        for shard in self.shards:
            held = shard.held_rows(rows)
            first = held.start
            while first < held.stop:
                last = min(held.stop, shard.first_row + ((first - shard.first_row) // step + 1) * step)
                yield shard, range(first, last)
                first = last

    def to_bytes(self) -> bytes:
        """Return the bytes of store.json, with the digest filled in."""
        unused: dict[str, object] = {"box_classes": None, "paired": (), "pixels": "rgb"}
        facts = {name: fact for name, fact in asdict(self).items() if name not in unused or fact != unused[name]}
        return sign({"format": FORMAT, "version": self.version, **facts})


def overlap(rows: range, others: range) -> range:
    """Return the rows that are in both ranges."""
    start = max(rows.start, others.start)
    return range(start, max(start, min(rows.stop, others.stop)))


def rows_text(rows: range) -> str:
    """Format rows for messages: "no rows", "row 5", "rows 5..9"."""
    if not rows:
        return "no rows"
    return f"row {rows[0]}" if len(rows) == 1 else f"rows {rows[0]}..{rows[-1]}"


def read_manifest(path: Path) -> Manifest:
    """Read and validate the manifest `path`. Raise StoreError if it is missing or invalid."""
    try:
        encoded = read_regular(path, most=MAX_SIGNED_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise _no_manifest(path) from None
    return parse_manifest(encoded, path)


def _no_manifest(path: Path) -> StoreError:
    folder = path.parent
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        return StoreError(f"{folder}: {found}; expected a store (the folder that `prep build` creates)")
    how_to_finish = f"run the command that began it again, or see `prep status {quoted(folder)}`"
    resume = "run the same `prep stage` again to resume it"
    for private, kind, advice in ((".build", "store", how_to_finish), (".stage", "part", resume)):
        if (folder / private).exists():
            return StoreError(f"{folder}: an unfinished {kind} (no {path.name}); {advice}")
    advice = f"pass the folder that `prep build` created, or restore {path.name} from a copy of the store"
    return StoreError(f"{folder}: not a store: it has no {path.name}; {missing_advice(folder)}{advice}")


def parse_manifest(encoded: bytes, path: Path) -> Manifest:
    """Parse and validate the bytes of a manifest. Errors name `path`."""
    advice = f"restore it from a copy, or {REBUILD}"
    facts = parse_signed(encoded, path, form=FORMAT, versions=(VERSION, *ADDED_KEYS), advice=advice)
    version = facts["version"]
    for since, (name, _) in ADDED_KEYS.items():
        if version < since:
            facts.pop(name, None)  # a key that another writer added
    try:
        manifest: Manifest = _as_type(Manifest, facts)
        if manifest.version != version:
            raise ValueError(f"{ADDED_KEYS[version][1]} in version {version}")
        _check_names(manifest)
        _check_counts(manifest)
        if manifest.paired:
            _check_paired(manifest)
        if manifest.columns or manifest.box_classes is not None:
            _check_columns(manifest)
        return manifest
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"the key {error} is missing" if isinstance(error, KeyError) else error
        raise StoreError(f"{path}: invalid manifest: {what}; {REBUILD}") from None


def _as_type(kind: Any, value: Any, name: str = "") -> Any:
    """Check a value of the JSON against the type of a field, and return it in this type."""
    if kind in SCALARS:
        return _as_scalar(kind, value, name)
    origin, kinds = get_origin(kind), get_args(kind)
    if origin is UnionType:  # the type of an optional key, or None
        return _as_type(kinds[0], value, name)
    if origin is Literal and value not in kinds:
        raise ValueError(f"{name} is {value!r}, expected {' or '.join(kinds)}")
    if origin is Literal or kind is Any:
        return value
    expected: Any = list if origin is tuple else dict
    if type(value) is not expected:
        raise ValueError(f"{name} is {value!r}, expected {expected.__name__}")
    if origin is dict:
        return {key: _as_type(kinds[1], item, name) for key, item in value.items()}
    if origin is tuple:
        if kinds[-1] is not ... and len(value) != len(kinds):
            raise ValueError(f"{name} is {value!r}, expected {len(kinds)} numbers")
        return tuple(_as_type(kinds[0], item, f"{name}[{place}]") for place, item in enumerate(value))
    prefix = f"{name}: " if name else ""
    fields = {key: of for key, of in _field_types(kind).items() if key in value or key not in OPTIONAL_KEYS}
    return kind(**{key: _as_type(of, value[key], prefix + key) for key, of in fields.items()})


def _as_scalar(kind: Any, value: Any, name: str) -> Any:
    types, expected = SCALARS[kind]
    if type(value) not in types or (kind is int and not 0 <= value < 2**63):
        raise ValueError(f"{name} is {value!r}, expected {expected}")
    return kind(value)


def _check_names(manifest: Manifest) -> None:
    """Check the names of files in the store's folder. An unprintable name could garble a terminal."""
    column_files = [column.file for column in manifest.columns]
    names = [*(shard.file for shard in manifest.shards), *manifest.files]
    for name in names + column_files:
        if not name.isprintable() or "/" in name or name in ("", ".", "..") or len(name.encode()) > 255:
            raise ValueError(f"{name!r:.99} is not a file name, expected up to 255 printable bytes without '/'")
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{repeated[0]} is listed more than once, expected each file once")
    for name in ("labels.npy", "checksums.npy", "samples.tsv", "rejects.tsv", *column_files):
        if name not in manifest.files:
            raise ValueError(f'"files" does not list {name}')


def _check_counts(manifest: Manifest) -> None:
    if 0 in manifest.shape or not manifest.count or not manifest.block_rows or not manifest.classes:
        found = f"{manifest.count} rows of shape {manifest.shape}, {len(manifest.classes)} classes"
        raise ValueError(f"{found}, blocks of {manifest.block_rows} rows: expected at least 1 of each")
    for key, values in (("pixel_mean", manifest.pixel_mean), ("pixel_std", manifest.pixel_std)):
        if len(values) != manifest.shape[2]:
            raise ValueError(f"{key} is {list(values)}, expected {manifest.shape[2]} numbers")
    next_row = 0
    for shard in manifest.shards:
        size = shard.data_offset + shard.rows * manifest.row_bytes
        is_aligned = shard.data_offset % DATA_OFFSET == 0 and 0 < shard.data_offset <= MAX_DATA_OFFSET
        if shard.first_row != next_row or not shard.rows or not is_aligned or shard.bytes != size:
            raise ValueError(f"{shard}: expected at least 1 row, first_row {next_row}, {size} bytes and {OFFSETS}")
        next_row += shard.rows
    if next_row != manifest.count:
        raise ValueError(f"the shards hold {next_row} rows, expected count {manifest.count}")


def check_column(column: Column, count: int) -> None:
    """Raise ValueError for a column that cannot be an npy file. NumPy would raise its own error when reading one."""
    shape = (count, *column.shape)
    if not re.fullmatch(r"\|[biu]1|<[iuf][248]", column.dtype):
        raise ValueError(f"dtype is {column.dtype!r}, expected a number type such as <f4")
    try:
        npy_header(shape, column.dtype)
    except ValueError as error:
        raise ValueError(f"column {column.name!r:.80}: {error}") from None
    if int(column.dtype[2:]) * math.prod(max(n, 1) for n in shape) >= 2**63:
        raise ValueError(f"column {column.name!r:.80} of shape {shape}: more than 2**63 bytes")


def _check_paired(manifest: Manifest) -> None:
    if manifest.shape[2] != 3:
        raise ValueError(f"the images have {manifest.shape[2]} channels, expected 3 next to paired images")
    names = [one.name for one in manifest.paired]
    if wrong := [name for name in names if name in NOT_PAIRED]:
        raise ValueError(f"a paired image is called {wrong[0]!r}, expected none of {', '.join(NOT_PAIRED)}")
    times = Counter([*names, *(column.name for column in manifest.columns)])
    if repeated := [name for name in names if times[name] > 1]:
        raise ValueError(f"{repeated[0]!r:.80} names more than one array")


def _check_columns(manifest: Manifest) -> None:
    for column in manifest.columns:
        check_column(column, manifest.count)
    named = [(column.dtype, len(column.shape)) for column in manifest.columns if column.name == BOX_LABELS]
    if manifest.box_classes is not None and named != [("<i4", 1)]:
        raise ValueError(f'"box_classes" requires a column {BOX_LABELS} of dtype <i4 with one label per box')


# Staged parts.


def part_rows(count: int, part: int, parts: int) -> range:
    """Return the rows of part number `part` when `count` rows are divided into `parts` ranges.

    A Loader with partition="range" gives rank `part` of `parts` the same rows. With g ranks on each of N nodes, the
    rows of rank r are within part r // g of N, so that every node can hold one part.

    Args:
        count: Number of rows of the store.
        part: Number of the part, from 0.
        parts: Number of parts.

    Returns:
        Consecutive row numbers. The sizes of two parts differ by at most 1.

    Example:
        >>> part_rows(10, 0, 4), part_rows(10, 1, 4)
        (range(0, 2), range(2, 5))
    """
    return range(part * count // parts, (part + 1) * count // parts)


def part_bytes(digest: str, rows: range) -> bytes:
    """Return the bytes of the stage.json of a part with `rows` of the store whose manifest has this digest."""
    facts = {"format": PART_FORMAT, "version": PART_VERSION, "store": digest}
    return sign({**facts, "first_row": rows.start, "rows": len(rows)})


def read_part(path: Path, manifest: Manifest) -> range | None:
    """Return the rows that a part of this manifest's store holds, from its stage.json. None if the file is missing."""
    try:
        encoded = read_regular(path, most=MAX_SIGNED_BYTES)
    except FileNotFoundError:
        return None
    return _parse_part(encoded, path, manifest)


def _parse_part(encoded: bytes, path: Path, manifest: Manifest) -> range:
    advice = f"remove {path.parent} and stage it again"
    facts = parse_signed(encoded, path, form=PART_FORMAT, versions=(PART_VERSION,), advice=advice)
    found, first, rows = facts.get("store"), facts.get("first_row"), facts.get("rows")
    if found != manifest.digest:
        raise StoreError(f"{path}: its store has digest {found!r}, but store.json has {manifest.digest!r}; {advice}")
    if type(first) is not int or type(rows) is not int or not 0 <= first < first + rows <= manifest.count:
        expected = f"expected a range within 0..{manifest.count - 1}"
        raise StoreError(f"{path}: {rows!r} rows from row {first!r}, {expected}; {advice}")
    return range(first, first + rows)
