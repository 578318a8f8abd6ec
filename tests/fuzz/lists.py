"""Lists of images: every text layout, with labels as numbers or names."""

import os
from collections.abc import Iterator

from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.sources.file_list import open_list
from tests.fuzz import scratch

FOLDER = scratch("lists")
SUFFIXES = (".txt", ".csv", ".tsv")


def seeds() -> Iterator[bytes]:
    """Yield each layout with the number of its suffix in the first byte."""
    (FOLDER / "a").mkdir(exist_ok=True)
    for name in ("a/1.jpg", "a/2.jpg", "3.jpg"):
        (FOLDER / name).write_bytes(b"picture")
    yield b"\0a/1.jpg\na/2.jpg\n\na/1.jpg\n"
    yield b"\0" + b"a/1.jpg 3\r\na/2.jpg 5\r\n./3.jpg -1\r\n"
    yield b'\1\xef\xbb\xbfindex,Label,Path\n1,2,"a/1.jpg"\n2,x,a/../3.jpg\n'
    yield b"\1" + b'a/1.jpg,"na""me\nof two"\n'
    yield b"\2" + f"{FOLDER}/a/1.jpg\tcat\n/elsewhere/2.jpg\tdog\n".encode()
    yield b"\2path\tlabel\na/\xff.jpg\t\n../x\t7\n"


def TestOneInput(data: bytes) -> None:
    """Open the list, and read the images that have no problem."""
    file = FOLDER / f"list{SUFFIXES[data[0] % len(SUFFIXES)] if data else ''}"
    file.write_bytes(data[1:])
    try:
        source = open_list(file)
        assert source.found
        entries = list(source.scan().entries)
    except BuildError:
        return
    top, classes = os.fsencode(FOLDER), source.listing().classes
    for entry in entries:
        path = os.path.normpath(os.path.join(top, entry.name))
        assert path.startswith(top + b"/"), entry
        assert entry.problem or 0 <= entry.label < len(classes), entry
        if not entry.problem:
            try:
                source.read(entry)
            except Stopped:
                continue
