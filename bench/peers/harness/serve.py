"""The process of a peer: it answers requests of the parent and sleeps in between.

    python -m bench.peers.harness.serve PEER SOURCE

Requests are lines of JSON on standard input, and answers are lines of JSON on standard output. Output of the peer goes
to standard error, which is the log.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.peers.harness.images import SAME_DECODER, decoded
from bench.peers.harness.judge import Delivered, save
from bench.peers.harness.peer import Batches, Peer, Source, load_peer

COPIES = 8  # makes epochs long, because with ImageNet's size the start of an epoch costs little
AUGMENTED_COPIES = 2  # fewer, because augmentation takes longer


def flush(folder: Path) -> None:
    """Flush every file to the disk, as a durable build does."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def warm(folder: Path) -> None:
    """Read every file once."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()


class Server:
    """The requests that a process answers, with the arm that is open."""

    def __init__(self, peer: Peer, source: Source) -> None:
        self.peer, self.source = peer, source
        self.start_epoch: Callable[[], Batches] | None = None

    def versions(self, request: dict[str, Any]) -> dict[str, Any]:
        """Import the modules of the peer and return the versions of its packages."""
        building = request["to"] == "build"
        for module in (building and self.peer.build_modules) or self.peer.modules:
            importlib.import_module(module)
        found = {"Python": platform.python_version()}
        for name in self.peer.distributions:
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # some packages have several possible names
                continue
        return {"versions": found}

    def reference(self, request: dict[str, Any]) -> dict[str, Any]:
        """Decode all images with this process's Pillow, and save marks of each requested kind for the parent."""
        size, marks = self.source.size, request["marks"]
        rights = {kind: Delivered(size, kind) for kind in marks}
        for row, label in decoded(self.source.files, size, self.source.workers, stretch=request["stretch"]):
            for right in rights.values():
                right.add(row[None], label)
        for kind, right in rights.items():
            save(right, Path(marks[kind]))
        return {}

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build the peer's files; return the seconds from JPEGs to files on the disk, and the size of the files."""
        folder = Path(request["folder"])
        if request["same_decoder"]:
            importlib.import_module("simplejpeg")
            os.environ[SAME_DECODER] = "1"
        folder.mkdir(parents=True)
        assert self.peer.build is not None
        start = time.perf_counter()
        self.peer.build(self.source, folder)
        flush(folder)
        seconds = time.perf_counter() - start
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
        return {"seconds": seconds, "bytes": sum(sizes), "files": len(sizes)}

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Open an arm and save its first epoch for the parent to check; return the seconds to the first batch."""
        [arm] = [arm for arm in self.peer.arms if arm.name == request["arm"]]
        folder = Path(request["folder"])
        long = AUGMENTED_COPIES if arm.augmented else COPIES
        source = replace(self.source, copies=1 if arm.decodes or request["once"] else long)
        if arm.prepare:
            arm.prepare(source, folder)
        warm(source.tree if arm.decodes and not arm.prepare else folder)
        size = source.crop if arm.augmented else source.size
        got = Delivered(size, request["kind"], unit_range=arm.unit_range)
        start = time.perf_counter()
        self.start_epoch = arm.read(source, folder)
        first = 0.0
        for images, labels in self.start_epoch():
            first = first or time.perf_counter() - start
            got.add(images, labels)
        save(got, Path(request["delivered"]))
        return {"first_batch_s": first, "copies": source.copies}

    def epochs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run whole epochs, at least one, until the requested seconds have passed."""
        assert self.start_epoch is not None
        count, starts = 0, list[float]()
        began = now = time.perf_counter()
        while not starts or now - began < request["seconds"]:
            for number, (images, _) in enumerate(self.start_epoch()):
                if number == 0:
                    starts.append(time.perf_counter() - now)
                count += len(images)
            now = time.perf_counter()
        return {"images": count, "seconds": now - began, "starts": starts}


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    multiprocessing.set_start_method("fork")  # the default on Linux that peers are written for; Python 3.14 changed it
    server = Server(load_peer(sys.argv[1]), Source.from_json(sys.argv[2]))
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(server, request["do"])(request)
        except BaseException as error:  # the parent waits for an answer in any case
            why = (str(error).strip() or "no reason given").splitlines()[0]
            answers.write(json.dumps({"error": f"{type(error).__name__}: {why}"}) + "\n")
            raise
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
