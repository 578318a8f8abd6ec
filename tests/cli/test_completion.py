"""Shell completion in bash."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

# Do what bash does when Tab is pressed: put the words in COMP_WORDS; the function fills COMPREPLY.
TAB = 'COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _prep_completion prep; echo "${COMPREPLY[*]}"\n'


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with this `prep` on PATH and an empty home folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/prep").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m decodeonce.cli "$@"\n')
    (tmp_path / "bin/prep").chmod(0o755)
    (tmp_path / "home").mkdir()
    return {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": f"{tmp_path}/home"}


def bash(script: str, environ: dict[str, str], cwd: Path) -> list[str]:
    """Return the lines that bash prints for a script; standard error must be empty."""
    done = subprocess.run(["bash", "-c", script], env=environ, cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_bash_completes_commands_flags_and_values(environ: dict[str, str], tmp_path: Path) -> None:
    wanted = {
        "prep bu": "build",
        "prep submit ''": "kubernetes slurm pbs",
        "prep build im": "imagenet",
        "prep build list --ro": "--root",
        "prep build folder src out --fit ''": "crop stretch pad",
        "prep verify train.store --qui": "--quiet",
        "prep info tr": "",  # no completion of ours, so bash completes files
    }
    script = "source <(prep --show-completion)\ncomplete -p prep\n" + "".join(TAB % words for words in wanted)
    registered, *found = bash(script, environ, tmp_path)
    assert registered == "complete -o default -F _prep_completion prep"
    assert dict(zip(wanted, found, strict=True)) == wanted


def test_completion_is_installed_for_current_shell(environ: dict[str, str], tmp_path: Path) -> None:
    lines = bash("prep --install-completion; true", environ, tmp_path)
    script = tmp_path / "home/.bash_completions/prep.sh"
    assert lines[0] == f"bash completion installed in {script}"
    assert f"source '{script}'" in (tmp_path / "home/.bashrc").read_text()


def test_completion_imports_no_slow_modules(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.argv = ['prep']\nfrom decodeonce.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'PIL', 'h5py', 'tqdm', 'decodeonce.prep.building'} & sys.modules.keys()))"
    )
    typed = {"COMP_WORDS": "prep ls --cla", "COMP_CWORD": "2", "_PREP_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **typed}, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["--class", "[]"]
