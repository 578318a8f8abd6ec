"""Run `prep` in this process, or in a separate process to test signals, streams and worker output."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from decodeonce import cli
from decodeonce.cli.app import app

__all__ = ["app", "assert_fails", "prep", "prep_process"]

Ended = subprocess.CompletedProcess[str]
# Variables of the job that runs the tests, if any: the commands must not act as its ranks.
JOB_VARIABLES = [
    name for name in os.environ if name.startswith(("RANK", "WORLD_SIZE", "OMPI_", "PMI_", "SLURM_", "PBS_"))
]


def prep(*arguments: object, cwd: Path | None = None, called: str = "prep", **environ: str) -> Ended:
    """Run `prep` in this process with empty standard input; a separate process takes 0.3 s more."""
    words = list(map(str, arguments))
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in JOB_VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", [called, *words])
        patch.setattr(sys, "stdin", io.StringIO())
        patch.setattr(cli, "quiet", False)  # as in a new process
        patch.setattr(cli, "results", None)
        if cwd is not None:
            patch.chdir(cwd)
        code = cli._run() or 0
        cli.log_outcome(code)
    return Ended(words, code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def printed(*arguments: object, cwd: Path | None = None, **environ: str) -> str:
    """Run `prep` in this process, check that it succeeds, and return its output."""
    done = prep(*arguments, cwd=cwd, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prep_process(*arguments: object, cwd: Path | None = None, **environ: str) -> Ended:
    """Run `prep` in a separate process."""
    command = [sys.executable, "-m", "decodeonce.cli", *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if name not in JOB_VARIABLES}
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=cwd, env={**kept, **environ}, check=False
    )


def prep_after(code: str, *arguments: object) -> Ended:
    """Run `prep` in a separate process and session, after this code, which can use os, signal and sys."""
    words = ["prep", *map(str, arguments)]
    script = f"import os, signal, sys\n{code}\nsys.argv = {words!r}\nfrom decodeonce.cli import main\nmain()"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True, check=False)


def kill_when(condition: str, signal: str, times: int = 1) -> str:
    """Return code that kills its process when an audit `event` with `args` has met a condition so many times."""
    return (
        f"left = {times}\ndef at(event, args):\n    global left\n    if {condition}:\n        left -= 1\n"
        f"        if left == 0:\n            os.kill(os.getpid(), signal.{signal})\nsys.addaudithook(at)"
    )


def write_program(folder: Path, name: str, body: str) -> None:
    """Write a shell script that can be called as a program."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def run(*command: object, cwd: Path | None = None, **environ: str) -> str:
    """Run a command and return its output; if it fails, show both outputs."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def assert_fails(result: Ended, code: int, *expected: str) -> None:
    """Check the exit code and the error: one line with these texts. Only the line about SRC may precede it."""
    assert result.returncode == code, result.stderr
    assert result.stderr.startswith("prep: stopped: " if code == 75 else "prep: error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stdout.count("\n") == len(re.findall(" class(?:es)?\n", result.stdout)) <= 1
    for text in expected:
        assert text in result.stderr
