"""A peer's process: it does what the parent asks for, line by line, and sleeps in between.

    python -m bench.peers.harness.serve PEER SOURCE

Requests come as JSON on standard input, answers go as JSON to standard output; what a peer prints goes to the log,
which is standard error.
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

COPIES = 8  # a long epoch: at ImageNet's size, what its start costs is nothing
AUGMENTED_COPIES = 2  # which take longer


def flush(folder: Path) -> None:
    """Have every file on the disk, as a build that is to last would."""
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
    """What a process holds between requests: the peer, and the arm that was opened."""

    def __init__(self, peer: Peer, source: Source) -> None:
        self.peer, self.source = peer, source
        self.begin: Callable[[], Batches] | None = None

    def versions(self, request: dict[str, Any]) -> dict[str, Any]:
        """Of what the peer is made of; what this process needs is imported here."""
        building = request["to"] == "build"
        for module in (building and self.peer.build_modules) or self.peer.modules:
            importlib.import_module(module)
        found = {"Python": platform.python_version()}
        for name in self.peer.distributions:
            try:
                found[name] = version(name)
            except PackageNotFoundError:  # of several names that it may go by
                continue
        return {"versions": found}

    def reference(self, request: dict[str, Any]) -> dict[str, Any]:
        """What every picture is by this process's Pillow, exactly and about, written down for the parent."""
        exact, about = Delivered(self.source.size, "exact"), Delivered(self.source.size, "about")
        for row, label in decoded(self.source.files, self.source.size, self.source.workers):
            for right in (exact, about):
                right.add(row[None], label)
        save(exact, Path(request["exact"]))
        save(about, Path(request["about"]))
        return {}

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds from JPEGs to files on the disk, and their bytes."""
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
        """Seconds to the first batch; all of the first epoch is written down for the parent to check."""
        [arm] = [arm for arm in self.peer.arms if arm.name == request["arm"]]
        folder = Path(request["folder"])
        long = AUGMENTED_COPIES if arm.augmented else COPIES
        source = replace(self.source, copies=1 if arm.decodes or request["once"] else long)
        warm(source.tree if arm.decodes else folder)
        got = Delivered(source.crop if arm.augmented else source.size, request["kind"])
        start = time.perf_counter()
        self.begin = arm.read(source, folder)
        first = 0.0
        for images, labels in self.begin():
            first = first or time.perf_counter() - start
            got.add(images, labels)
        save(got, Path(request["delivered"]))
        return {"first_batch_s": first, "copies": source.copies}

    def epochs(self, request: dict[str, Any]) -> dict[str, Any]:
        """Whole epochs, one at least, until so many seconds are over."""
        assert self.begin is not None
        pictures, starts = 0, list[float]()
        began = now = time.perf_counter()
        while not starts or now - began < request["seconds"]:
            for number, (images, _) in enumerate(self.begin()):
                if number == 0:
                    starts.append(time.perf_counter() - now)
                pictures += len(images)
            now = time.perf_counter()
        return {"pictures": pictures, "seconds": now - began, "starts": starts}


def main() -> None:
    """Answer until there is no further request."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    multiprocessing.set_start_method(
        "fork"
    )  # as where peers' users run them on Linux, whatever newer Pythons begin with
    server = Server(load_peer(sys.argv[1]), Source.from_json(sys.argv[2]))
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(server, request["do"])(request)
        except BaseException as error:  # whatever it is, the parent waits for an answer
            why = (str(error).strip() or "no reason given").splitlines()[0]
            answers.write(json.dumps({"error": f"{type(error).__name__}: {why}"}) + "\n")
            raise
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
