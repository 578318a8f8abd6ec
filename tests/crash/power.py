"""Power loss: what a disk may hold after any call, if unflushed changes are there, missing or torn.

The bytes and size of a file are durable once it was flushed. A name is durable once its folder was flushed. A rename is
atomic. Any other operation may have reached the disk or not, independently of the rest; of a write, any sectors may
have.
"""

import os
import pickle
import random
import threading
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from decodeonce.store import disk
from tests.crash.double import NAMES, SECTOR, Log

CHANGES = ("mkdir", "replace", "link", "unlink", "rmdir", "write", "pwrite", "ftruncate", "fallocate")
FLUSHES = ("fsync", "fdatasync")


class Recorder:
    """Replaces the disk module after `install`, on top of a Double, and records the calls that succeed.

    Calls named in `ignored` are not recorded, as if they had not been made.
    """

    def __init__(self, path: Path, ignored: Collection[str] = ()) -> None:
        self._log, self._lock, self._ignored = Log(path), threading.Lock(), ignored

    def install(self) -> None:
        for name in NAMES:
            setattr(disk, name, partial(self._call, name, getattr(disk, name)))

    def records(self) -> list[tuple[Any, ...]]:
        """Return the calls in order; files and folders are inode numbers."""
        found = []
        with open(self._log.path, "rb") as file:
            while file.peek(1):
                found.append(pickle.load(file))
        return found

    def _call(self, name: str, real: Callable[..., Any], *args: Any) -> Any:
        with self._lock:  # records have the order of the calls, and no thread is killed while it records
            is_new = name == "open_file" and args[1] & os.O_CREAT and not args[0].exists()
            result = real(*args)
            if (is_new or name in (*CHANGES, *FLUSHES)) and name not in self._ignored:
                self._log.append(pickle.dumps(_record(name, args, result)))
            return result


def _record(name: str, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    if name in ("open_file", "mkdir"):
        inode = os.fstat(result).st_ino if name == "open_file" else args[0].stat().st_ino
        return ("make", *_place(args[0]), inode, name == "mkdir")
    if name in ("replace", "link"):
        return ("move" if name == "replace" else "link", *_place(args[0]), *_place(args[1]))
    if name in ("unlink", "rmdir"):
        return ("remove", *_place(args[0]))
    inode = os.fstat(args[0]).st_ino
    if name in FLUSHES:
        return ("flush", inode)
    if name == "ftruncate":
        return ("cut", inode, args[1])
    if name == "fallocate":
        return ("reserve", inode, args[1] + args[2])
    offset = args[2] if name == "pwrite" else os.lseek(args[0], 0, os.SEEK_CUR) - result
    return ("write", inode, offset, bytes(memoryview(args[1])[:result]))


def _place(path: Path) -> tuple[int, str]:
    return os.stat(os.path.dirname(os.path.abspath(path))).st_ino, os.path.basename(path)


class Thing:
    """A file with its durable bytes and the operations since, or a folder."""

    def __init__(self, *, is_folder: bool) -> None:
        self.is_folder = is_folder
        self.durable, self.pending = b"", list[tuple[Any, ...]]()

    def flush(self) -> None:
        """Make all operations durable."""
        self.durable, self.pending = self.all(), []

    def all(self) -> bytes:
        """Return the content that programs see."""
        return _done(self.durable, self.pending)

    def zeros(self) -> bytes:
        """Return the durable content, with the size that programs see."""
        size = len(self.all())
        return self.durable[:size].ljust(size, b"\0")

    def some(self, rng: random.Random) -> bytes:
        """Return the durable content with a random part of the operations since."""
        return _done(self.durable, [part for done in self.pending for part in _parts(done, rng)])


def _parts(done: tuple[Any, ...], rng: random.Random) -> Iterator[tuple[Any, ...]]:
    how = rng.choice(("none", "all", "torn"))
    if how == "torn" and done[0] == "write":
        name, offset, data = done
        edges = [0, *range(-offset % SECTOR or SECTOR, len(data), SECTOR), len(data)]
        for start, end in pairwise(edges):
            if rng.random() < 0.5:
                yield name, offset + start, data[start:end]
    elif how != "none":
        yield done


def _done(durable: bytes, pending: list[tuple[Any, ...]]) -> bytes:
    held = bytearray(durable)
    for name, at, *data in pending:
        if name == "cut":
            held = held[:at].ljust(at, b"\0")
        elif name == "reserve":
            held = held.ljust(at, b"\0")
        else:
            held = held.ljust(at, b"\0")
            held[at : at + len(data[0])] = data[0]
    return bytes(held)


Tree = dict[str, bytes | None]  # None for a folder
Name = tuple[Thing, str]  # a folder, and a name in it


class Change(NamedTuple):
    """A name that a file or folder got, lost or, in a rename, both. A flush of the folder makes it durable."""

    folder: Thing
    thing: Thing
    lost: Name | None
    got: Name | None

    def done(self, names: dict[Name, Thing]) -> None:
        if self.lost is not None and names.get(self.lost) is self.thing:
            del names[self.lost]
        if self.got is not None:
            names[self.got] = self.thing


class Disk:
    """The durable state of a sandbox, and the operations since; `do` adds one record.

    `root` is the inode of the sandbox, which is empty at first.
    """

    def __init__(self, root: int) -> None:
        self._root = Thing(is_folder=True)
        self._things = {root: self._root}  # by inode
        self._durable: dict[Name, Thing] = {}
        self._pending: list[Change] = []

    def do(self, record: tuple[Any, ...]) -> None:
        name, *facts = record
        if name in ("write", "cut", "reserve"):
            self._things[facts[0]].pending.append((name, *facts[1:]))
        elif name == "flush":
            if facts[0] in self._things:  # not the folder that the sandbox is in
                self._flush(self._things[facts[0]])
        elif name == "make":
            folder, thing = self._things[facts[0]], Thing(is_folder=facts[3])
            self._things[facts[2]] = thing
            self._pending.append(Change(folder, thing, None, (folder, facts[1])))
        else:
            old = self._things[facts[0]], facts[1]
            got = (self._things[facts[2]], facts[3]) if name in ("move", "link") else None
            if old in (seen := self._names(lambda change: True)):  # not libhdf5's own scratch file
                self._pending.append(Change((got or old)[0], seen[old], None if name == "link" else old, got))

    def _flush(self, thing: Thing) -> None:
        if not thing.is_folder:
            return thing.flush()
        left: list[Change] = []
        for change in self._pending:
            if change.folder is thing:
                change.done(self._durable)
                if change.lost is not None:  # the old name is gone, too, whether or not it had reached the disk
                    left = [other for other in left if (other.thing, other.got) != (change.thing, change.lost)]
            else:
                left.append(change)
        self._pending = left

    def _names(self, chosen: Callable[[Change], bool]) -> dict[Name, Thing]:
        names = dict(self._durable)
        for change in self._pending:
            if chosen(change):
                change.done(names)
        return names

    def _tree(self, chosen: Callable[[Change], bool], content: Callable[[Thing], bytes]) -> Tree:
        names, found = self._names(chosen), Tree()

        def walk(folder: Thing, path: str) -> None:
            for name, thing in sorted((name, thing) for (top, name), thing in names.items() if top is folder):
                found[path + name] = None if thing.is_folder else content(thing)
                if thing.is_folder:
                    walk(thing, f"{path}{name}/")

        walk(self._root, "")
        return found

    def worst(self) -> Tree:
        """Return only what is durable."""
        return self._tree(lambda change: False, lambda file: file.durable)

    def states(self, rng: random.Random, mixtures: int) -> Iterator[tuple[str, Tree]]:
        """Yield possible states after a power loss now: the extremes, and `mixtures` random mixtures."""
        yield "nothing unflushed", self.worst()
        yield "names without data", self._tree(lambda change: True, lambda file: file.durable)
        yield "names and zeros", self._tree(lambda change: True, Thing.zeros)
        yield "data without names", self._tree(lambda change: False, Thing.all)
        for number in range(mixtures):
            mixed = self._tree(lambda change: rng.random() < 0.5, lambda file: file.some(rng))
            yield f"mixture {number}", mixed


def lay_out(tree: Tree, sandbox: Path) -> None:
    for path, content in tree.items():
        if content is None:
            (sandbox / path).mkdir()
        else:
            (sandbox / path).write_bytes(content)
