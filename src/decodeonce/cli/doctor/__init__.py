"""`prep doctor`: is this machine set up. Another check is a function, and a line in `CHECKS` or `PATH_CHECKS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from decodeonce.cli.doctor import launcher, machine, pil, software, storage
from decodeonce.cli.doctor.check import IMPORT_ERRORS, Check
from decodeonce.cli.output import JsonFlag, give, say, say_marked
from decodeonce.formatting import counted

CHECKS: tuple[Callable[[], Check], ...] = (
    software.python,
    software.decodeonce,
    software.torch,
    pil.pillow,
    pil.one_pil,
    pil.libjpeg_of_pil,
    pil.formats_of_pil,
    software.simplejpeg,
    software.numpy,
    software.h5py,
    software.typer,
    software.xxhash,
    software.tqdm,
    machine.cores,
    machine.memory,
    machine.address_space,
    machine.open_files,
    machine.locked_memory,
    launcher.variables,
    launcher.rank,
    launcher.task,
)
PATH_CHECKS: tuple[Callable[[storage.Place], Check], ...] = (
    storage.file_system,
    storage.room,
    storage.abilities,
    storage.stripes,
)
COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


def doctor(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Where stores are to lie. (default: this folder)", metavar="PATH")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Look at all that building and training need here: software, cores, memory, limits, launcher, file systems.

    Each line is ok, warn or bad, with what to do: exit code 1 where something is bad.
    """
    checks = [_looked_at(check) for check in CHECKS]
    for path in paths or [Path(".")]:
        place = storage.find_place(path)
        checks += [check(place) for check in PATH_CHECKS]
    levels = Counter(check.level for check in checks)
    if as_json:
        listed = [asdict(check) for check in checks]
        problems = [f"{check.name}: {check.found}: {check.advice}" for check in checks if check.level != "ok"]
        give({"ok": not levels["bad"], "checks": listed, **_facts(checks), "problems": problems})
    else:
        _show(checks)
        say(f"{levels['ok']} ok, {counted(levels['warn'], 'warning')}, {levels['bad']} bad")
    if levels["bad"]:
        raise typer.Exit(1)


def _looked_at(check: Callable[[], Check]) -> Check:
    """What a check finds; bad where it needs a package that cannot be imported."""
    try:
        return check()
    except IMPORT_ERRORS as error:
        name = check.__name__.replace("_", " ")
        return Check(name, "bad", f"cannot be looked at: {error}", "install again what the message names")


def _show(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        say_marked(check.level, COLOURS[check.level], f"{check.name:<{width}}  {check.found}")
        if check.advice:
            say(f"      {'':{width}}  {check.advice}")


def _facts(checks: list[Check]) -> dict[str, Any]:
    """The same in a few values, for programs."""
    import platform
    import resource

    import decodeonce
    from decodeonce.host import available_memory, installed_version, usable_cores

    found = {check.name: check.found for check in checks}
    names = ("numpy", "torch", "h5py", "xxhash", "simplejpeg")
    return {
        "decodeonce": decodeonce.__version__,
        "python": platform.python_version(),
        **{name: installed_version(name) or "not installed" for name in names},
        "pillow": found["pillow"],
        "usable_cores": usable_cores(),
        "available_memory_gb": round((available_memory() or 0) / 1e9, 1),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "launcher": found["rank"],
        "task": found["task"],
    }
