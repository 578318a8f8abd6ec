"""Export a finished store as image files in class folders, or as WebDataset tars.

The files are written to a folder next to DEST, which is renamed to DEST as the last step. So DEST is complete or does
not exist. The name of the folder has the node and the process, so that two exports never write to the same folder.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from decodeonce.errors import DecodeonceError, Stopped, StoreError
from decodeonce.formatting import quoted
from decodeonce.host import process_exists
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.processes.child import Parent, run_workers
from decodeonce.prep.recipe import ExportForm, check_choice
from decodeonce.store import Sample, Store, disk, open_store
from decodeonce.store.checks import check_file
from decodeonce.store.files import append, make_folder, remove_tree, sync_folder, writing

CLASS_LIST = "classes.txt"  # class names in label order, for --classes; not written if a name does not fit on a line
SHARD_ROWS = 10_000
BLOCK_BYTES = 64 << 20  # pixels of a block of files, about a second of work; its images are held in memory
NAME_BYTES = 200  # file systems allow 255
# Calling fsync(2) on 256 files of 95 KB took 0.4 s one at a time and 0.06 s eight at a time (ext4).
SYNC_THREADS = 8


@dataclass(frozen=True)
class ExportSettings:
    """How to encode and store the images of an export.

    Args:
        form: "folder" writes one file per image, "webdataset" writes tars.
        quality: JPEG quality, 1 to 100. None writes PNG, which keeps every pixel.
        shard_rows: Rows per tar; only for "webdataset".

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> ExportSettings("webdataset", quality=95).suffix
        '.jpg'
    """

    form: ExportForm = "folder"
    quality: int | None = None
    shard_rows: int = SHARD_ROWS

    def __post_init__(self) -> None:
        check_choice("form", self.form, ExportForm)
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(f"quality is {self.quality}, expected 1 to 100, or None for PNG")
        if self.shard_rows < 1:
            raise ValueError(f"shard_rows is {self.shard_rows}, expected at least 1")

    def block_rows(self, source: Store) -> int:
        """Return the rows per block: those of a tar, or 256 files, fewer if rows are large."""
        return max(1, min(256, BLOCK_BYTES // source.manifest.row_bytes)) if self.form == "folder" else self.shard_rows

    @property
    def suffix(self) -> str:
        """Suffix of the image files."""
        return ".png" if self.quality is None else ".jpg"


@dataclass(frozen=True)
class Exported:
    """The result of `export_store`.

    Attributes:
        images: Number of exported images.
        classes: Number of classes.
        sorted_classes: Whether the classes are sorted by name. If not, a build from the exported folders needs the
            class list to assign the same labels.

    Example:
        >>> export_store(open_store("val.store"), "tars", ExportSettings("webdataset")).images
        16
    """

    images: int
    classes: int
    sorted_classes: bool


def export_store(
    source: Store,
    dest: str | os.PathLike[str],
    settings: ExportSettings,
    *,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Exported:
    """Write every row of a store as an image into a new folder, and check the checksum of each row.

    The form "folder" writes DEST/<class>/<row>_<stem of the source name>.png, or .jpg with a `quality`. The row has
    eight digits, so names are unique and not hidden. A class without rows becomes an empty folder. If the store has
    masks, the folders of the classes are in DEST/images and, for example, DEST/mask.

    The form "webdataset" writes DEST/shard-000000.tar and so on. A row has three members: <row>.png, <row>.cls with
    its label, and <row>.json with its line of samples.tsv, its columns and the class names of its boxes. If a column
    is called `width`, for example, the source's width is in `width_`. A NaN or infinity in a column is null. A mask is
    one more member, such as <row>.mask.png.

    DEST/classes.txt lists the classes in label order, unless a name cannot be on a line of its own. PNG keeps every
    pixel. The bytes depend on the store, the settings and the encoder, not on `workers`.

    `dest` does not exist until the export is complete. If the call is interrupted, repeat it: it starts again.

    Args:
        source: The finished store.
        dest: Path of the folder to create.
        settings: Form, quality and size of shards.
        workers: Number of worker processes.
        progress: Function that is called with the number of rows since its last call.

    Returns:
        The number of images and classes.

    Raises:
        DecodeonceError: If `dest` exists or is inside the store, another export to it is unfinished, or a worker
            process crashed.
        StoreError: If the store is damaged, is a staged part, or has a class name that cannot be the name of a folder.
        Stopped: If a worker process was killed, or the store cannot be read because of a temporary error.
        OSError: If `dest` cannot be written.

    Example:
        >>> export_store(open_store("val.store"), "images", ExportSettings("folder"))
        Exported(images=16, classes=4, sorted_classes=True)
    """
    folders = _class_folders(source) if settings.form == "folder" else []
    _check_source(source)
    dest = Path(dest)
    taken = DecodeonceError(f"{dest}: already exists; choose another DEST, or remove it first")
    for folder in Path(os.path.realpath(dest)).parents:
        if folder.exists() and folder.samefile(source.paths.root):
            raise DecodeonceError(f"{dest}: is inside the store to be exported; choose a DEST elsewhere")
    unfinished = _unfinished_folder(dest)
    if os.path.lexists(dest):
        sync_folder(unfinished.parent)  # it may be the export of a call that was killed before this
        raise taken
    try:
        made = _make_folders(source, unfinished, folders)
        _write_blocks(source, unfinished, dest, settings, workers, progress or (lambda rows: None))
        for folder in made:
            sync_folder(folder)
        if os.path.lexists(dest):
            raise taken
        disk.replace(unfinished, dest)
    except BaseException:
        with suppress(OSError):  # report the first error
            remove_tree(unfinished)
        raise
    sync_folder(dest.absolute().parent)
    names = [encoded_name(cls.name) for cls in source.classes]
    return Exported(len(source), len(source.classes), names == sorted(names))


def _class_folders(source: Store) -> list[str]:
    """Return the folder names by label; raise StoreError for a class name that is unsafe or that builds skip."""
    folders: dict[bytes, None] = {}
    for label, cls in enumerate(source.classes):
        name = encoded_name(cls.name)
        if not name or name.startswith(b".") or b"/" in name or b"\0" in name or len(name) > 255 or name in folders:
            raise StoreError(
                f"{source.paths.root}: class {label} is {cls.name[:99]!r}, expected a unique folder name, "
                "not hidden, without '/', of at most 255 bytes; use --as webdataset"
            )
        folders[name] = None
    return [os.fsdecode(name) for name in folders]


def _check_source(source: Store) -> None:
    source.check_held(range(len(source)), "export from the whole store")
    channels = source.manifest.shape[2]
    if channels not in (1, 3):
        raise StoreError(
            f"{source.paths.root}: rows have {channels} channels; only rows with 1 or 3 channels can be exported"
        )
    for path in (source.paths.samples, source.paths.checksums):
        check_file(path, source.manifest.files[path.name])


def _node() -> str:
    """Return a name for this node, or for the container in it whose processes this one sees."""
    return f"{socket.gethostname()}.{os.stat('/proc/self/ns/pid').st_ino}"


def _unfinished_folder(dest: Path) -> Path:
    """Return the path of the folder that will become `dest`. Remove those that killed exports of this node left."""
    parent, name, node = dest.absolute().parent, dest.absolute().name, _node()
    make_folder(parent)
    for left in os.listdir(parent):
        if match := re.fullmatch(rf"{re.escape(name)}\.tmp-(.+)-([0-9]+)", left, re.DOTALL):
            if match[1] != node or process_exists(int(match[2])):
                what = f"{parent / left}: process {match[2]} on {match[1]} exports to {dest}, or was killed there"
                advice = f"wait until it has ended, or stop it and run: rm -r {quoted(parent / left)}"
                raise DecodeonceError(f"{what}; {advice}")
            remove_tree(parent / left)
    return parent / f"{name}.tmp-{node}-{os.getpid()}"


def _make_folders(source: Store, top: Path, classes: list[str]) -> list[Path]:
    """Create folders, those of the classes in each part of the rows if there are several, and the list of classes."""
    parts = list(source.manifest.shapes) if source.manifest.paired and classes else []
    tops = [top / part for part in parts]
    folders = [top, *tops, *(one / name for one in tops or [top] for name in classes)]
    for folder in folders:
        disk.mkdir(folder)
    names = [cls.name for cls in source.classes]
    if CLASS_LIST not in classes and all(name == name.strip() and name.isprintable() for name in names):
        listed = b"".join(encoded_name(name) + b"\n" for name in names)
        _save(top / CLASS_LIST, [listed])
    return folders


def _write_blocks(
    source: Store, top: Path, dest: Path, settings: ExportSettings, workers: int, progress: Callable[[int], None]
) -> None:
    blocks = range(-(-len(source) // settings.block_rows(source)))
    workers = min(workers, len(blocks))
    if workers > 1:
        task = {"store": str(source.paths.root), "top": str(top), "settings": asdict(settings)}
        run_workers(__name__, workers, task, iter(blocks), progress, f"{dest}: a worker process")
    else:
        with closing(ImageWriter(source, top, settings, progress)) as writer:
            for block in blocks:
                writer.write(block)


def _save(path: Path, chunks: Iterable[bytes]) -> None:
    with writing(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        for data in chunks:
            append(fd, data)


class ImageWriter:
    """Write blocks of rows durably into the folder `top`."""

    def __init__(self, source: Store, top: Path, settings: ExportSettings, progress: Callable[[int], None]) -> None:
        self._rows = StoreRows(source.paths.root, source.manifest.digest)
        self._top, self._settings, self._progress = top, settings, progress
        self._names = [os.fsdecode(encoded_name(cls.name)) for cls in source.classes]
        shapes = source.manifest.shapes.items()
        self._suffixes = {name: settings.suffix if len(shape) == 3 else ".png" for name, shape in shapes}

    def write(self, block: int) -> None:
        """Write the files of a block; raise StoreError if a row is damaged."""
        size = self._settings.block_rows(self._rows.store)
        rows = range(block * size, min((block + 1) * size, len(self._rows.store)))
        if self._settings.form == "folder":
            self._write_images(rows)
        else:
            _save(self._top / f"shard-{block:06d}.tar", self._tar(rows))

    def close(self) -> None:
        """Close the store, because some file systems cannot remove open files."""
        self._rows.close()

    def _write_images(self, rows: range) -> None:
        with ThreadPoolExecutor(SYNC_THREADS) as threads:
            saved = []
            for row in rows:
                sample = self._rows.sample(row)
                for name, image in self._images(row).items():
                    saved.append(threads.submit(_save, self._path(sample, name), [image]))
            for file in saved:
                file.result()

    def _path(self, sample: Sample, part: str) -> Path:
        stem = os.path.splitext(sample.source.rpartition("/")[2])[0].replace("\0", "?")
        name = name_bytes(f"{sample.row:08d}_{stem}")
        end = NAME_BYTES
        while len(name) > end and name[end] & 0xC0 == 0x80:  # do not cut within a character
            end -= 1
        top = self._top / (part if self._rows.manifest.paired else "")
        return top / self._names[sample.label] / (os.fsdecode(name[:end]) + self._suffixes[part])

    def _tar(self, rows: range) -> Iterator[bytes]:
        for row in rows:
            sample, store = self._rows.sample(row), self._rows.store
            own = asdict(sample)
            own["class"] = own.pop("class_name")
            columns = {name: _finite(column[sample.row]) for name, column in store.columns.items()}
            fields = {_free_name(name, columns): value for name, value in own.items()} | columns
            if store.manifest.box_classes is not None:
                found = [store.box_classes[label] for label in columns["box_labels"] if label >= 0]
                fields[_free_name("box_classes", columns)] = found
            members = []
            for name, image in self._images(row).items():
                part = "" if name == "images" else f".{name}"
                members.append(_tar_member(f"{sample.row:08d}{part}{self._suffixes[name]}", image))
            members.append(_tar_member(f"{sample.row:08d}.cls", b"%d" % sample.label))
            members.append(_tar_member(f"{sample.row:08d}.json", json.dumps(fields).encode()))
            yield b"".join(members)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _images(self, row: int) -> dict[str, bytes]:
        """Return a row as encoded images by name. Masks are always PNG."""
        arrays = self._rows.manifest.arrays(np.frombuffer(self._rows.read(row), np.uint8))
        self._progress(1)
        return {name: _encoded(array, self._settings.quality) for name, array in arrays.items()}


def _encoded(array: NDArray[np.uint8], quality: int | None) -> bytes:
    image, file = Image.fromarray(array[..., 0] if array.shape[2:] == (1,) else array), io.BytesIO()
    if quality is None or array.ndim == 2:  # a mask
        # Synthetic photographs at 256x256: 217 images/s of 94 KB with Z_RLE, 198 images/s of 102 KB with zlib level 1,
        # and 49 images/s of about 90 KB with Pillow's default, level 6.
        image.save(file, "PNG", compress_type=zlib.Z_RLE)
    else:
        image.save(file, "JPEG", quality=quality, subsampling=0 if quality >= 90 else 2)
    return file.getvalue()


def _free_name(name: str, columns: Mapping[str, Any]) -> str:
    while name in columns:
        name += "_"
    return name


def _finite(values: np.generic | NDArray[np.generic]) -> Any:
    """Return numbers as JSON can hold them: None for each NaN or infinity."""
    return np.where(np.isfinite(values), values, None).tolist()  # type: ignore[call-overload]


def _tar_member(name: str, data: bytes) -> bytes:
    """Return a tar member with the defaults of tarfile: mode 0644, user and group 0, time 0."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    # The name of a mask can make that of its member longer than the 100 bytes of a plain header.
    return info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def encoded_name(name: str) -> bytes:
    """Return the bytes of a name, or b"" if it has a surrogate that encodes no byte."""
    try:
        return name_bytes(name)
    except UnicodeEncodeError:
        return b""


def main(arguments: list[str]) -> int:
    """Run a worker process: write the blocks that the parent orders, and report every row."""
    with Parent(arguments) as parent:
        task = parent.receive()
        top, settings = Path(task["top"]), ExportSettings(**task["settings"])
        writer = ImageWriter(open_store(task["store"]), top, settings, parent.report)
        for block in parent.orders():
            try:
                writer.write(block)
            except MemoryError:
                raise Stopped("out of memory; run the same command again with fewer --workers") from None
    return 0
