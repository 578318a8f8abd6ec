"""The runs: builds in turn, a check of what they wrote; then a check of what every arm delivers, and epochs in turn."""

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
from bench.peers.harness.judge import Kind, Saved, fault, load
from bench.peers.harness.peer import OURS, PILLOW, Arm, Peer, Source, load_peer
from bench.peers.harness.runner import ArmError, Runner


@dataclass
class Peers:
    """The peers of a command, their environments, and why some have no figures."""

    find_python: Callable[[str, Peer], Path]
    find_packages: Callable[[Packages], Path]
    peers: dict[str, Peer] = field(default_factory=dict)
    pythons: dict[str, Path] = field(default_factory=dict)
    packages: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # the title of a peer, a build or an arm: why

    def install(self, names: Iterable[str]) -> None:
        """Make the environments; those that fail are left out."""
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
        """Say why there are no figures, and go on; without this project there is nothing to compare with."""
        if name == OURS:
            raise error
        why = " ".join(str(error).split())  # pip's takes lines
        if peer.debian:
            why += f"; it needs Debian's {' '.join(peer.debian)}, see --apt"
        self.missing[title] = why
        say(f"{title}: left out: {why}")


@dataclass(frozen=True)
class Way:
    """One way to build a peer's files; `packages` are imported instead of its environment's."""

    name: str
    title: str
    decoder: str
    packages: Packages | str = ""

    @property
    def key(self) -> str:
        """For its folder and its measurements."""
        return f"{self.name}-{self.packages}" if self.packages else self.name


@dataclass
class Run:
    """What is measured, and where: the images' folder also holds what is built of them, the logs and the journal."""

    source: Source
    folder: Path
    repeats: int
    seconds: float
    journal: Journal
    peers: Peers

    def start(self, name: str, what: str, packages: str = "") -> Runner:
        """A process of a peer's."""
        log = self.folder / "logs" / f"{re.sub('[^A-Za-z0-9]+', '-', f'{name} {what}')}.log"
        folder = self.peers.packages[packages] if packages else None
        return Runner(self.peers.pythons[name], name, self.source, log, folder)

    def files(self, key: str) -> Path:
        """What a peer has built."""
        return self.folder / "built" / key

    @cached_property
    def right(self) -> dict[Kind, Saved]:
        """What every image is by stock Pillow: exactly, and about."""
        paths: dict[Kind, Path] = {"exact": self.folder / "exact.npz", "about": self.folder / "about.npz"}
        runner = self.start(PILLOW, "reference")
        try:
            runner.ask(do="reference", exact=str(paths["exact"]), about=str(paths["about"]))
        finally:
            runner.close()
        found = {kind: load(path) for kind, path in paths.items()}
        return {**found, "augmented": found["about"]}

    def images(self) -> dict[str, int]:
        """How many, and their bytes."""
        sizes = [path.stat().st_size for path, _ in self.source.files]
        return {"images": len(sizes), "jpeg_bytes": sum(sizes)}


def say(text: str) -> None:
    """For the person who waits."""
    print(text, file=sys.stderr, flush=True)


def ways(peers: Peers) -> list[Way]:
    """Each peer as its documentation says, then with this project's decoder; this project also with stock Pillow."""
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
    """Build in turn, each time from nothing. What the first build writes is checked, and all of it is removed."""
    for path, _ in run.source.files:
        path.read_bytes()  # no build is the one that finds them cold
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
    """One build, whose files replace an earlier one's."""
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
    """Read what was built by the peer's first arm; ArmError if these are not the images."""
    arm = next(arm for arm in run.peers.peers[way.name].arms if not arm.augmented and not arm.decodes)
    runner = run.start(way.name, f"check {way.packages}")
    try:
        _open(run, runner, arm, run.files(way.key), kind="about" if way.packages else arm.kind, once=True)
    finally:
        runner.close()


def measure_loads(run: Run, *, augmented: bool) -> dict[str, Any]:
    """Build what is read, check every arm that has not been measured, then time epochs of each in turn."""
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
    """The files that an arm reads, built if they are not there; ArmError if they cannot be."""
    name = arm.files_of or name
    if not arm.decodes and not run.files(name).exists():
        peer = run.peers.peers.get(name)
        if peer is None:
            raise ArmError(f"it reads what {name} builds, which is not there")
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
        rate = took["pictures"] / took["seconds"]
        say(f"load {repeat + 1} of {run.repeats}: {arm.name}: {rate:,.0f} images/s")


def _open(run: Run, runner: Runner, arm: Arm, files: Path, *, kind: Kind, once: bool) -> dict[str, Any]:
    """An arm's first epoch; ArmError if what it delivers is not the images."""
    delivered = run.folder / "delivered.npz"
    versions = runner.ask(do="versions", to="load")
    opened = runner.ask(do="open", arm=arm.name, kind=kind, folder=str(files), delivered=str(delivered), once=once)
    if why := fault(load(delivered), run.right[kind], opened["copies"]):
        raise ArmError(why)
    say(f"checked: {arm.name}")
    return {**versions, **opened}


def by_rate(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fastest first."""
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
        "images_per_s": [one["pictures"] / one["seconds"] for one in took],
        "epoch_start_s": [start for one in took for start in one["starts"]],
        **{"first_batch_s": opened["first_batch_s"], "decodes": arm.decodes, "note": arm.note},
        "versions": opened["versions"],
    }


def settings(source: Source, repeats: int, seconds: float, peers_digest: str) -> dict[str, Any]:
    """What an earlier run's measurements must have in common with this one's to count for it."""
    return {**json.loads(source.to_json()), "repeats": repeats, "seconds": seconds, "peers": peers_digest}
