"""samples.tsv when it is damaged: what its lines still say, wherever one of them begins."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import StoreError
from decodeonce.store.files import read_regular
from decodeonce.store.manifest import PictureClass
from decodeonce.store.table import SAMPLE_COLUMNS, Sample, escape, line, sample_line, unescape

_BOX = rb"(?:\d+,\d+,\d+,\d+)?"
_LINE = re.compile(
    rb"(\d{1,18})\t(\d{1,18})\t([^\t\n]*)\t([^\t\n]+)\t(\d{1,9})\t(\d{1,9})\t(" + _BOX + rb")\t([0-9a-f]{16})"
)


class FoundLines:
    """The lines of a damaged samples.tsv of `count` rows: whole ones by their row, and what is left of others.

    A line may be whole and wrong all the same: only the digest of the file tells. Of a file of more than `most` bytes
    nothing is known.
    """

    def __init__(self, path: Path, count: int, classes: tuple[PictureClass, ...], *, most: int) -> None:
        try:
            self._data = read_regular(path, most=most)
        except (OSError, StoreError):  # nothing is known, then
            self._data = b""
        self._count, self._classes = count, classes
        self._class_names = [escape(cls.name).encode() for cls in classes]
        found = list(_LINE.finditer(self._data))
        self._lines: dict[int, re.Match[bytes]] = {}
        for place, match in enumerate(found):
            row = place if len(found) == count else int(match[1])
            if row < count:
                self._lines.setdefault(row, match)

    def missing(self) -> list[int]:
        """The rows of which no whole line is there."""
        return [row for row in range(self._count) if row not in self._lines]

    def labels(self) -> NDArray[np.int64]:
        """(count,) int64 as the lines say by class or number; 0 where none is there."""
        numbers = {name: label for label, name in enumerate(self._class_names)}
        found = np.zeros(self._count, np.int64)
        for row, match in self._lines.items():
            label = numbers.get(match[3], int(match[2]))
            found[row] = label if label < len(self._classes) else 0
        return found

    def sample(self, row: int, label: int) -> Sample | None:
        """What is known of a row with this label: of one without a whole line the name only, and no digest."""
        match = self._lines.get(row)
        fields = self._guessed(row) if match is None else match.groups()[3:]
        if fields is None:
            return None
        source, width, height, box, digest = fields
        try:
            name = unescape(source.decode())
        except UnicodeDecodeError:
            return None
        return Sample(
            row, label, self._classes[label].name, name, int(width), int(height), box.decode(), digest.decode()
        )

    def _guessed(self, row: int) -> tuple[bytes, ...] | None:
        """Source, sizes, box and digest of a line that is broken, its neighbours being whole."""
        before = self._lines[row - 1].end() if row - 1 in self._lines else self._data.find(b"\n")
        after = self._lines[row + 1].start() if row + 1 in self._lines else len(self._data)
        if before < 0 or (row + 1 < self._count and row + 1 not in self._lines):
            return None
        if row and row - 1 not in self._lines:
            return None
        fields = self._data[before:after].strip(b"\n").split(b"\t")
        if len(fields) < 4 or not fields[3]:
            return None
        fields += [b""] * 4
        width, height = (side if side.isdigit() else b"0" for side in fields[4:6])
        return fields[3], width, height, fields[6] if re.fullmatch(_BOX, fields[6]) else b"", b""

    def encoded(self, labels: NDArray[np.int64], made: dict[int, Sample]) -> list[bytes]:
        """samples.tsv with these labels, row numbers as they must be, and the lines of `made` in their places."""
        chunks = [line(SAMPLE_COLUMNS)]
        for row, label in enumerate(labels.tolist()):
            match = self._lines.get(row)
            if row in made:
                chunks.append(sample_line(made[row]))
            elif match is not None:
                name = self._class_names[label]
                chunks.append(b"\t".join((b"%d" % row, b"%d" % label, name, *match.groups()[3:])) + b"\n")
        return chunks
