"""The run: environments, builds in turn, a check of what every arm delivers, epochs in turn."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.harness.environments import SetupError
from bench.peers.harness.journal import Journal
from bench.peers.harness.judge import Saved, fault, load
from bench.peers.harness.peer import OURS, PILLOW, Arm, Peer, Source, load_peer
from bench.peers.harness.runner import ArmError, Runner


@dataclass
class Run:
    """What is measured, and where: the pictures' folder also holds what is built of them, the logs and the journal."""

    source: Source
    folder: Path
    repeats: int
    seconds: float
    journal: Journal
    peers: dict[str, Peer] = field(default_factory=dict)
    pythons: dict[str, Path] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # a peer's or an arm's name: why it has no figures

    def start(self, name: str, what: str) -> Runner:
        """A process of a peer's."""
        log = self.folder / "logs" / f"{re.sub('[^A-Za-z0-9]+', '-', f'{name} {what}')}.log"
        return Runner(self.pythons[name], name, self.source, log)

    def files(self, name: str) -> Path:
        """What a peer has built."""
        return self.folder / "built" / name


def say(text: str) -> None:
    """For the person who waits."""
    print(text, file=sys.stderr, flush=True)


def measure(run: Run, names: Iterable[str], find_python: Callable[[str, Peer], Path]) -> dict[str, Any]:
    """All of it; returns the facts that tables and plot are made from."""
    run.pythons[PILLOW] = find_python(PILLOW, load_peer(PILLOW))
    for name in names:
        run.peers[name] = load_peer(name)
        try:
            run.pythons[name] = find_python(name, run.peers[name])
        except SetupError as error:
            _leave_out(run, name, error)
    build_all(run)
    load_all(run, expected(run))
    return facts(run)


def _leave_out(run: Run, name: str, error: Exception, arm: Arm | None = None) -> None:
    """Go on without a peer, or without one of its arms, and say so; without this project there is nothing to tell."""
    if name == OURS:
        raise error
    peer = run.peers[name] if arm else run.peers.pop(name)
    what, why = arm.name if arm else peer.title, " ".join(str(error).split())  # pip's takes lines
    if peer.debian:
        why += f"; it needs Debian's {' '.join(peer.debian)}, see --apt"
    run.missing[what] = why
    say(f"{what}: left out: {why}")


def build_all(run: Run) -> None:
    """Every peer that builds, in turn, each time anew; the last one's files stay."""
    for repeat in range(run.repeats):
        for name in [name for name, peer in run.peers.items() if peer.build]:
            if f"build {name} {repeat}" in run.journal.found and run.files(name).exists():
                continue
            try:
                took = _build(run, name)
            except ArmError as error:
                _leave_out(run, name, error)
                continue
            run.journal.add(f"build {name} {repeat}", took)
            rate = len(run.source.files) / took["seconds"]
            say(f"build {repeat + 1} of {run.repeats}: {run.peers[name].title}: {rate:,.0f} pictures/s")


def _build(run: Run, name: str) -> dict[str, Any]:
    """One build, whose files then are in the place of an earlier one's."""
    part = run.files(name).with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    runner = run.start(name, "build")
    try:
        took = {**runner.ask(do="versions", to="build"), **runner.ask(do="build", folder=str(part))}
    finally:
        runner.close()
    shutil.rmtree(run.files(name), ignore_errors=True)
    part.rename(run.files(name))
    return took


def expected(run: Run) -> dict[bool, Saved]:
    """What every picture is, exactly (True) and about (False), by stock Pillow."""
    paths = {True: run.folder / "exact.npz", False: run.folder / "about.npz"}
    runner = run.start(PILLOW, "reference")
    try:
        runner.ask(do="reference", exact=str(paths[True]), about=str(paths[False]))
    finally:
        runner.close()
    return {exact: load(path) for exact, path in paths.items()}


def load_all(run: Run, right: dict[bool, Saved]) -> None:
    """Open and check every arm that has not been measured, one after the other; then epochs of each in turn."""
    runners: dict[tuple[str, Arm], Runner] = {}
    try:
        for name, arm in [(name, arm) for name, peer in run.peers.items() for arm in peer.arms]:
            if all(f"load {arm.name} {repeat}" in run.journal.found for repeat in range(run.repeats)):
                continue
            runners[name, arm] = run.start(name, arm.name)
            try:
                run.journal.add(f"open {arm.name}", _open(run, runners[name, arm], name, arm, right))
            except ArmError as error:
                runners.pop((name, arm)).close()
                _leave_out(run, name, error, arm)
        for repeat in range(run.repeats):
            _load_in_turn(run, runners, repeat)
    finally:
        for runner in runners.values():
            runner.close()


def _load_in_turn(run: Run, runners: dict[tuple[str, Arm], Runner], repeat: int) -> None:
    for (name, arm), runner in list(runners.items()):
        if f"load {arm.name} {repeat}" in run.journal.found:
            continue
        try:
            took = runner.ask(do="epochs", seconds=run.seconds)
        except ArmError as error:
            runners.pop((name, arm)).close()
            _leave_out(run, name, error, arm)
            continue
        run.journal.add(f"load {arm.name} {repeat}", took)
        rate = took["pictures"] / took["seconds"]
        say(f"load {repeat + 1} of {run.repeats}: {arm.name}: {rate:,.0f} pictures/s")


def _open(run: Run, runner: Runner, name: str, arm: Arm, right: dict[bool, Saved]) -> dict[str, Any]:
    """An arm's first epoch; ArmError where what it delivers is not the pictures."""
    files = run.files(arm.files_of or name)
    if not arm.decodes and not files.exists():
        raise ArmError(f"it reads what {arm.files_of or name} builds, which is not there")
    delivered = run.folder / "delivered.npz"
    versions = runner.ask(do="versions", to="load")
    opened = runner.ask(do="open", arm=arm.name, folder=str(files), delivered=str(delivered))
    if why := fault(load(delivered), right[arm.exact], opened["copies"]):
        raise ArmError(why)
    say(f"checked: {arm.name}")
    return {**versions, **opened}


def facts(run: Run) -> dict[str, Any]:
    """All that was found, for JSON."""
    builds = {peer.title: _build_facts(run, name) for name, peer in run.peers.items() if peer.build}
    arms = [arm for peer in run.peers.values() for arm in peer.arms if arm.name not in run.missing]
    loads = {arm.name: _load_facts(run, arm) for arm in arms}
    ours = {"build": run.peers[OURS].title, "load": run.peers[OURS].arms[0].name}
    return {
        "pictures": len(run.source.files),
        "jpeg_bytes": sum(path.stat().st_size for path, _ in run.source.files),
        **{"size": run.source.size, "batch_size": run.source.batch_size, "workers": run.source.workers},
        **{"repeats": run.repeats, "seconds": run.seconds, "ours": ours},
        **{"builds": builds, "loads": loads, "missing": run.missing},
    }


def _build_facts(run: Run, name: str) -> dict[str, Any]:
    took = [run.journal.found[f"build {name} {repeat}"] for repeat in range(run.repeats)]
    return {
        "pictures_per_s": [len(run.source.files) / one["seconds"] for one in took],
        "decoder": run.peers[name].decoder,
        **{"bytes": took[-1]["bytes"], "files": took[-1]["files"], "versions": took[-1]["versions"]},
    }


def _load_facts(run: Run, arm: Arm) -> dict[str, Any]:
    opened = run.journal.found[f"open {arm.name}"]
    took = [run.journal.found[f"load {arm.name} {repeat}"] for repeat in range(run.repeats)]
    return {
        "pictures_per_s": [one["pictures"] / one["seconds"] for one in took],
        "epoch_start_s": [start for one in took for start in one["starts"]],
        **{"first_batch_s": opened["first_batch_s"], "decodes": arm.decodes, "versions": opened["versions"]},
    }


def settings(source: Source, repeats: int, seconds: float, peers_digest: str) -> dict[str, Any]:
    """What an earlier run's measurements must have in common with this one's to count for it."""
    return {**json.loads(source.to_json()), "repeats": repeats, "seconds": seconds, "peers": peers_digest}
