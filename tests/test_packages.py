"""Detection and automatic installation of the programs that tests need."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.programs import CLUSTER
from tests.packages import LOCK, is_fatal, missing, need, provide


def put_programs(folder: Path, packages: list[str]) -> str:
    """Create fake programs of these packages; return "", as an installation without errors does."""
    for package in packages:
        program = folder / CLUSTER[package]
        program.write_text("#!/bin/sh\n# calls sbatch\n")
        program.chmod(0o755)
    return ""


def test_nothing_is_installed_if_nothing_is_missing(tmp_path: Path) -> None:
    put_programs(tmp_path, list(CLUSTER))
    assert provide(CLUSTER, str(tmp_path), install=lambda lacking: str(1 / 0)) == ""


def test_only_missing_packages_are_installed(tmp_path: Path) -> None:
    put_programs(tmp_path, ["slurmd", "munge"])
    assert missing(CLUSTER, str(tmp_path)) == ["slurmctld", "slurm-client", "slurm-wlm-torque", "openmpi-bin", "mpich"]
    assert provide(CLUSTER, str(tmp_path), install=lambda lacking: put_programs(tmp_path, lacking)) == ""
    assert missing(CLUSTER, str(tmp_path)) == []


def test_failed_install_names_packages_and_reason(tmp_path: Path) -> None:
    put_programs(tmp_path, [package for package in CLUSTER if package != "mpich"])
    message = provide(CLUSTER, str(tmp_path), install=lambda lacking: "no network")
    assert message == "to run these tests: apt-get install mpich (no network)"


def test_qsub_of_real_pbs_does_not_count(tmp_path: Path) -> None:
    put_programs(tmp_path, list(CLUSTER))
    (tmp_path / "qsub").write_bytes(b"\x7fELF")
    assert missing(CLUSTER, str(tmp_path)) == ["slurm-wlm-torque"]


def test_only_one_process_installs_at_a_time(tmp_path: Path) -> None:
    def install(lacking: list[str]) -> str:
        with open(LOCK) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return put_programs(tmp_path, lacking)

    assert provide(CLUSTER, str(tmp_path), install=install) == ""


def test_skipping_fails_only_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [is_fatal(environ) for environ in ({}, {"CI": ""}, {"CI": "true"})] == [False, False, True]
    assert not is_fatal({"CI": "true", "ALLOW_SKIPS": "1"})
    monkeypatch.setattr("tests.packages.apt_get", lambda packages: "no network")
    for value, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", value)
        with pytest.raises(outcome, match=r"apt-get install no-such-package \(no network\)"):
            need({"no-such-package": "no-such-program"})


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import pytest
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_folders_tested_without_torch_do_not_import_it() -> None:
    root = Path(__file__).resolve().parents[1]
    legs = root / ".ci/legs"
    if not legs.exists():
        pytest.skip("not a checkout: .ci/legs is missing")
    folders = re.findall(r"tests/\w+", legs.read_text())
    assert len(folders) >= 4
    environ = os.environ | {"ALLOW_SKIPS": "1"}
    command = [sys.executable, "-c", WITHOUT_TORCH, *folders]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
