"""Run builds in turn and check their output; then check the images that every arm delivers, and time epochs in turn."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.peers.harness.environments import Packages, SetupError
from bench.peers.harness.journal import Journal
from bench.peers.harness.judge import Kind, Saved, find_fault, load
from bench.peers.harness.peer import OURS, PILLOW, Arm, Peer, Source, load_peer
from bench.peers.harness.runner import ArmError, Runner


@dataclass
class Peers:
    """The peers of a run, their environments, and the reasons why some have no results."""

    find_python: Callable[[str, Peer], Path]
    find_packages: Callable[[Packages], Path]
    peers: dict[str, Peer] = field(default_factory=dict)
    pythons: dict[str, Path] = field(default_factory=dict)
    packages: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # reasons by title of a peer, a build or an arm

    def install(self, names: Iterable[str]) -> None:
        """Create the environments. Leave out peers whose environment cannot be created."""
        self.pythons[PILLOW] = self.find_python(PILLOW, load_peer(PILLOW))
        self.packages = {"": Path(), "ours": self.find_packages("ours"), "stock": self.find_packages("stock")}
        for name in names:
            peer = load_peer(name)
            try:
                self.pythons[name] = self.find_python(name, peer)
                self.peers[name] = peer
            except SetupError as error:
                self.leave_out(name, peer, peer.title, error)

    def leave_out(self, name: str, peer: Peer, title: str, error: Exception) -> None:
        """Report why there are no results. If this project fails, raise the error: there is nothing to compare with."""
        if name == OURS:
            raise error
        why = " ".join(str(error).split())  # errors of pip have several lines
        if peer.debian:
            why += f"; it needs the Debian packages {' '.join(peer.debian)}: pass --apt to install them"
        self.missing[title] = why
        say(f"{title} is left out: {why}")


@dataclass(frozen=True)
class Way:
    """A way to build a peer's files. `packages` are imported instead of those in its environment."""

    name: str
    title: str
    decoder: str
    packages: Packages | str = ""

    @property
    def key(self) -> str:
        """Name of its folder and of its measurements."""
        return f"{self.name}-{self.packages}" if self.packages else self.name


@dataclass
class Run:
    """Settings and folder of a run. The folder has the images, the built files, the logs and the journal."""

    source: Source
    folder: Path
    repeats: int
    seconds: float
    journal: Journal
    peers: Peers

    def start(self, name: str, what: str, packages: str = "") -> Runner:
        """Start a process for a peer."""
        log = self.folder / "logs" / f"{re.sub('[^A-Za-z0-9]+', '-', f'{name} {what}')}.log"
        folder = self.peers.packages[packages] if packages else None
        return Runner(self.peers.pythons[name], name, self.source, log, folder)

    def files(self, key: str) -> Path:
        """Return the folder that a peer has built."""
        return self.folder / "built" / key

    @cached_property
    def right(self) -> dict[Kind, Saved]:
        """The expected images, decoded by stock Pillow, for exact and for similar images."""
        found = self._decode("exact", "about", stretch=False)
        return {**found, "augmented": found["about"]}

    @cached_property
    def stretched(self) -> Saved:
        """The expected images of arms that stretch them."""
        return self._decode("stretched", stretch=True)["stretched"]

    def _decode(self, *kinds: Kind, stretch: bool) -> dict[Kind, Saved]:
        """Decode all images by stock Pillow, and return their marks of each kind."""
        paths: dict[Kind, Path] = {kind: self.folder / f"{kind}.npz" for kind in kinds}
        runner = self.start(PILLOW, "reference")
        try:
            runner.ask(do="reference", stretch=stretch, marks={kind: str(path) for kind, path in paths.items()})
        finally:
            runner.close()
        return {kind: load(path) for kind, path in paths.items()}

    def images(self) -> dict[str, int]:
        """Return the number of images and their bytes."""
        sizes = [path.stat().st_size for path, _ in self.source.files]
        return {"images": len(sizes), "jpeg_bytes": sum(sizes)}


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def ways(peers: Peers) -> list[Way]:
    """Return two ways per peer: as its documentation says and with this project's decoder (ours: stock Pillow)."""
    found = []
    for name, peer in peers.peers.items():
        if not peer.build:
            continue
        found.append(Way(name, peer.title, peer.decoder))
        if name == OURS:
            found.append(Way(name, f"{peer.title}, stock Pillow", "simplejpeg and Pillow", "stock"))
        elif not peer.own_decoder:
            found.append(Way(name, f"{peer.title}, same decoder", peers.peers[OURS].decoder, "ours"))
    return found


def measure_builds(run: Run) -> dict[str, Any]:
    """Time all builds in turn, each into a new folder. Check the output of first builds, and remove all output."""
    for path, _ in run.source.files:
        path.read_bytes()  # so that the files are in the page cache for every build
    found = ways(run.peers)
    for repeat in range(run.repeats):
        for way in [way for way in found if way.title not in run.peers.missing]:
            if f"build {way.key} {repeat}" in run.journal.found:
                continue
            try:
                took = _build(run, way)
                if repeat == 0:
                    _check_build(run, way)
            except ArmError as error:
                run.peers.leave_out(way.name, run.peers.peers[way.name], way.title, error)
                continue
            finally:
                shutil.rmtree(run.files(way.key), ignore_errors=True)
            run.journal.add(f"build {way.key} {repeat}", took)
            rate, count = len(run.source.files) / took["seconds"], len(run.source.files)
            say(f"build {repeat + 1} of {run.repeats}, {count:,} images: {way.title}: {rate:,.0f} images/s")
    rows = by_rate({way.title: _build_facts(run, way) for way in found if way.title not in run.peers.missing})
    impossible = {peer.title: peer.own_decoder for peer in run.peers.peers.values() if peer.title in rows}
    return {**run.images(), "rows": rows, "own_decoder": {title: why for title, why in impossible.items() if why}}


def _build(run: Run, way: Way) -> dict[str, Any]:
    """Run a build. Its files replace those of an earlier build."""
    part = run.files(way.key).with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    runner = run.start(way.name, f"build {way.packages}", way.packages)
    try:
        versions = runner.ask(do="versions", to="build")
        built = runner.ask(do="build", folder=str(part), same_decoder=way.packages == "ours")
    finally:
        runner.close()
    shutil.rmtree(run.files(way.key), ignore_errors=True)
    part.rename(run.files(way.key))
    return {**versions, **built}


def _check_build(run: Run, way: Way) -> None:
    """Read built files with the peer's first arm; raise ArmError if the images are wrong."""
    arm = next(arm for arm in run.peers.peers[way.name].arms if not arm.augmented and not arm.decodes)
    runner = run.start(way.name, f"check {way.packages}")
    try:
        _open(run, runner, arm, run.files(way.key), kind="about" if way.packages else arm.kind, once=True)
    finally:
        runner.close()


def measure_loads(run: Run, *, augmented: bool) -> dict[str, Any]:
    """Build the files to read, check every arm that has not been measured, then time epochs of all arms in turn."""
    arms = [(name, arm) for name, peer in run.peers.peers.items() for arm in peer.arms if arm.augmented == augmented]
    runners: dict[tuple[str, Arm], Runner] = {}
    try:
        for name, arm in arms:
            if all(f"load {arm.name} {repeat}" in run.journal.found for repeat in range(run.repeats)):
                continue
            try:
                files = _files_of(run, arm, name)
                runners[name, arm] = run.start(name, arm.name)
                opened = _open(run, runners[name, arm], arm, files, kind=arm.kind, once=False)
                run.journal.add(f"open {arm.name}", opened)
            except ArmError as error:
                if (name, arm) in runners:
                    runners.pop((name, arm)).close()
                run.peers.leave_out(name, run.peers.peers[name], arm.name, error)
        for repeat in range(run.repeats):
            _load_in_turn(run, runners, repeat)
    finally:
        for runner in runners.values():
            runner.close()
    rows = by_rate({arm.name: _load_facts(run, arm) for _, arm in arms if arm.name not in run.peers.missing})
    return {**run.images(), "rows": rows}


def _files_of(run: Run, arm: Arm, name: str) -> Path:
    """Return the folder that an arm reads, and build it if necessary; raise ArmError if that is not possible."""
    if arm.prepare:
        return run.files(f"{name}-prepared")
    name = arm.files_of or name
    if not arm.decodes and not run.files(name).exists():
        peer = run.peers.peers.get(name)
        if peer is None:
            raise ArmError(f"it reads files built by {name}, which is left out")
        say(f"building for {arm.name}")
        _build(run, Way(name, peer.title, peer.decoder))
    return run.files(name)


def _load_in_turn(run: Run, runners: dict[tuple[str, Arm], Runner], repeat: int) -> None:
    for (name, arm), runner in list(runners.items()):
        if f"load {arm.name} {repeat}" in run.journal.found:
            continue
        try:
            took = runner.ask(do="epochs", seconds=run.seconds)
        except ArmError as error:
            runners.pop((name, arm)).close()
            run.peers.leave_out(name, run.peers.peers[name], arm.name, error)
            continue
        run.journal.add(f"load {arm.name} {repeat}", took)
        rate = took["images"] / took["seconds"]
        say(f"load {repeat + 1} of {run.repeats}: {arm.name}: {rate:,.0f} images/s")


def _open(run: Run, runner: Runner, arm: Arm, files: Path, *, kind: Kind, once: bool) -> dict[str, Any]:
    """Open an arm and run its first epoch; raise ArmError if the images are wrong."""
    delivered = run.folder / "delivered.npz"
    versions = runner.ask(do="versions", to="load")
    opened = runner.ask(do="open", arm=arm.name, kind=kind, folder=str(files), delivered=str(delivered), once=once)
    expected = run.stretched if kind == "stretched" else run.right[kind]
    if why := find_fault(load(delivered), expected, opened["copies"]):
        raise ArmError(why)
    say(f"checked: {arm.name}")
    return {**versions, **opened}


def by_rate(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Sort rows by median rate, fastest first."""
    return dict(sorted(rows.items(), key=lambda item: -statistics.median(item[1]["images_per_s"])))


def _build_facts(run: Run, way: Way) -> dict[str, Any]:
    took = [run.journal.found[f"build {way.key} {repeat}"] for repeat in range(run.repeats)]
    return {
        "images_per_s": [len(run.source.files) / one["seconds"] for one in took],
        "decoder": way.decoder,
        **{"bytes": took[-1]["bytes"], "files": took[-1]["files"], "versions": took[-1]["versions"]},
    }


def _load_facts(run: Run, arm: Arm) -> dict[str, Any]:
    opened = run.journal.found[f"open {arm.name}"]
    took = [run.journal.found[f"load {arm.name} {repeat}"] for repeat in range(run.repeats)]
    return {
        "images_per_s": [one["images"] / one["seconds"] for one in took],
        "epoch_start_s": [start for one in took for start in one["starts"]],
        **{"first_batch_s": opened["first_batch_s"], "decodes": arm.decodes, "note": arm.note},
        "versions": opened["versions"],
    }


def settings(source: Source, repeats: int, seconds: float, peers_digest: str) -> dict[str, Any]:
    """Return the settings of a run. Measurements of an earlier run are used only if its settings are the same."""
    return {**json.loads(source.to_json()), "repeats": repeats, "seconds": seconds, "peers": peers_digest}
