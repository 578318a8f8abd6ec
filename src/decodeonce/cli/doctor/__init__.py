"""`prep doctor`: check this machine. To add a check, write a function that returns a Finding and add it to a table."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce import __version__
from decodeonce.cli.doctor import machine, software
from decodeonce.cli.doctor.check import IMPORT_ERRORS, Finding, bad, ok
from decodeonce.cli.options import JsonFlag
from decodeonce.cli.output import print_json, say
from decodeonce.formatting import counted

if TYPE_CHECKING:
    from decodeonce.prep.building.free_space import Storage

PACKAGES = ("numpy", "h5py", "typer", "xxhash", "tqdm", "jinja2")
CHECKS: dict[str, Callable[[], Finding]] = {
    "python": lambda: ok(f"{platform.python_version()} ({sys.executable})"),
    "decodeonce": lambda: ok(f"{__version__} ({Path(__file__).parents[2]})"),
    "torch": software.torch,
    "pillow": software.pillow,
    "formats of pil": software.formats_of_pil,
    "simplejpeg": partial(software.package, "simplejpeg", missing="warn"),  # needed to build only
    **{name: partial(software.package, name) for name in PACKAGES},
    "cores": machine.cores,
    "memory": machine.memory,
    "address space": machine.address_space,
    "open files": machine.open_files,
    "rank": machine.rank,
    "task": machine.task,
}
# Checks of each PATH, which may not exist yet.
PATH_CHECKS: dict[str, Callable[[Storage], Finding]] = {
    "file system": machine.file_system,
    "abilities": machine.abilities,
    "locks": machine.locks,
}


def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders that will hold stores. (default: the current folder)", metavar="PATH"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check what building and training need on this machine: software, cores, memory, limits, ranks, file systems.

    Each line is ok, warn or bad, and says what to do. The exit code is 1 if something is bad.
    """
    findings = [(name, _run_check(check)) for name, check in CHECKS.items()]
    for path in paths or [Path(".")]:
        findings += [(name, _run_check(partial(_check_path, check, path))) for name, check in PATH_CHECKS.items()]
    levels = Counter(finding.level for _, finding in findings)
    if as_json:
        checks = [{"name": name, **asdict(finding)} for name, finding in findings]
        problems = [f"{name}: {one.found}: {one.advice}" for name, one in findings if one.level != "ok"]
        print_json({"ok": not levels["bad"], "checks": checks, "problems": problems})
    else:
        width = max(len(name) for name, _ in findings)
        for name, finding in findings:
            say(f"{finding.level:<4}  {name:<{width}}  {finding.found}")
            if finding.advice:
                say(f"      {'':{width}}  {finding.advice}")
        say(f"{levels['ok']} ok, {counted(levels['warn'], 'warning')}, {levels['bad']} bad")
    if levels["bad"]:
        raise typer.Exit(1)


def _check_path(check: Callable[[Storage], Finding], path: Path) -> Finding:
    from decodeonce.prep.building.free_space import find_storage

    try:
        return check(find_storage(path))
    except OSError as error:
        return bad(f"{path}: {error.strerror or error}", "choose another path, or fix this")


def _run_check(check: Callable[[], Finding]) -> Finding:
    """Run a check; the finding is bad if a package that it needs cannot be used."""
    try:
        return check()
    except IMPORT_ERRORS as error:
        return bad(f"cannot be checked: {error}", "reinstall the package that the message names")
