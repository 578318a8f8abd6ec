"""The paths of an export, and how its rows are encoded and written as files or tars."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import PIL
from PIL import Image, features

from decodeonce.prep.building.journal import BlockRecord, Journal
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.recipe import ExportForm, check_choice
from decodeonce.store import Sample, Store
from decodeonce.store.durable import write_atomic

SHARD_ROWS = 10_000
MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels
BLOCK_BYTES = 64 << 20  # pixels of a block of files, about a second of work; its images are held in memory
NAME_BYTES = 200  # file systems allow 255, and the temporary name of a file is longer than its final one
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

    def facts(self, source: Store) -> dict[str, object]:
        """Return all that determines the bytes of an export, JSON-ready, by names for messages."""
        libraries = ", ".join(f"{name} {features.version(name)}" for name in ("zlib", "libjpeg_turbo"))
        facts: dict[str, object] = {
            "store": source.manifest.digest,
            "--as": self.form,
            "--quality": self.quality or "none (PNG)",
            "encoder": f"Pillow {PIL.__version__}, {libraries}",
        }
        return {**facts, "--shard-rows": self.shard_rows} if self.form == "webdataset" else facts


class ExportPaths:
    """The paths of an export to `dest`. Until the export is complete, all its files are in `work`, next to `dest`.

    Attributes:
        claim: Store and settings of the export, written after the folders below were created.
        images: The folder that is renamed to DEST.
        scratch: Temporary files; the next run removes those that a kill left.
    """

    def __init__(self, dest: Path) -> None:
        self.dest = dest
        self.work = dest.absolute().with_name(f".{dest.absolute().name}.export")
        self.claim = self.work / "export.json"
        self.images = self.work / "images"
        self.journals = self.work / "journals"
        self.scratch = self.work / "scratch"


def encoded_name(name: str) -> bytes:
    """Return the bytes of a name, or b"" if it has a surrogate that encodes no byte."""
    try:
        return name_bytes(name)
    except UnicodeEncodeError:
        return b""


class ImageWriter:
    """Write blocks of rows: first durable images under their final names, then a line in a journal."""

    def __init__(
        self, source: Store, paths: ExportPaths, settings: ExportSettings, progress: Callable[[int], None]
    ) -> None:
        self._rows = StoreRows(source.paths.root, source.manifest.digest)
        self._paths, self._settings, self._progress = paths, settings, progress
        self._folders = [paths.images / os.fsdecode(encoded_name(cls.name)) for cls in source.classes]
        self._journal = Journal(paths.journals, 0, 1)

    def write(self, block: int) -> None:
        """Write a block; raise StoreError if a row is damaged."""
        if self._settings.form == "folder":
            with ThreadPoolExecutor(SYNC_THREADS) as threads:
                saved = [threads.submit(self._save, self._path(s), [image]) for s, image in self._images(block)]
                for file in saved:
                    file.result()
        else:
            self._save(self._paths.images / f"shard-{block:06d}.tar", self._tar(block))
        self._journal.append(BlockRecord(block), 0)

    def close(self) -> None:
        """Close the store and the journal, because some file systems cannot remove open files."""
        self._rows.close()
        self._journal.close()

    def _path(self, sample: Sample) -> Path:
        stem = os.path.splitext(sample.source.rpartition("/")[2])[0].replace("\0", "?")
        name = name_bytes(f"{sample.row:08d}_{stem}")
        end = NAME_BYTES
        while len(name) > end and name[end] & 0xC0 == 0x80:  # do not cut within a character
            end -= 1
        return self._folders[sample.label] / (os.fsdecode(name[:end]) + self._settings.suffix)

    def _tar(self, block: int) -> Iterator[bytes]:
        for sample, image in self._images(block):
            facts = asdict(sample)
            facts["class"] = facts.pop("class_name")
            store = self._rows.store
            facts |= {name: column[sample.row].tolist() for name, column in store.columns.items()}
            if store.manifest.box_classes is not None:
                facts["box_classes"] = [store.box_classes[label] for label in facts["box_labels"] if label >= 0]
            yield _tar_member(f"{sample.row:08d}{self._settings.suffix}", image)
            yield _tar_member(f"{sample.row:08d}.cls", b"%d" % sample.label)
            yield _tar_member(f"{sample.row:08d}.json", json.dumps(facts).encode())
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _save(self, path: Path, chunks: Iterable[bytes]) -> None:
        write_atomic(path, chunks, scratch=self._paths.scratch)

    def _images(self, block: int) -> Iterator[tuple[Sample, bytes]]:
        """Yield each row of a block as an encoded image."""
        size, (height, width, channels) = self._settings.block_rows(self._rows.store), self._rows.manifest.shape
        for row in range(block * size, min((block + 1) * size, len(self._rows.store))):
            sample = self._rows.sample(row)
            image = Image.frombytes(MODES[channels], (width, height), self._rows.read(row))
            yield sample, _encoded(image, self._settings.quality)
            self._progress(1)


def _encoded(image: Image.Image, quality: int | None) -> bytes:
    file = io.BytesIO()
    if quality is None:
        # Synthetic photographs at 256x256: 217 images/s of 94 KB with Z_RLE, 198 images/s of 102 KB with zlib level 1,
        # and 49 images/s of about 90 KB with Pillow's default, level 6.
        image.save(file, "PNG", compress_type=zlib.Z_RLE)
    else:
        image.save(file, "JPEG", quality=quality, subsampling=0 if quality >= 90 else 2)
    return file.getvalue()


def _tar_member(name: str, data: bytes) -> bytes:
    """Return a tar member with the defaults of tarfile: mode 0644, user and group 0, time 0."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
