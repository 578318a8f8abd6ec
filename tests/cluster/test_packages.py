"""Whether the programs for these tests are there, and what is done where they are not."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.packages import PACKAGES, is_fatal, missing, provide


def put_programs(folder: Path, packages: list[str]) -> str:
    """Make programs that stand for those of packages."""
    for package in packages:
        program = folder / PACKAGES[package]
        program.write_text("#!/bin/sh\n# in front of sbatch\n")
        program.chmod(0o755)
    return ""


def test_nothing_is_installed_where_all_is_there(tmp_path: Path) -> None:
    put_programs(tmp_path, list(PACKAGES))
    assert provide(str(tmp_path), install=lambda lacking: str(1 / 0)) == ""


def test_only_what_is_missing_is_installed(tmp_path: Path) -> None:
    put_programs(tmp_path, ["slurmd", "munge"])
    assert missing(str(tmp_path)) == ["slurmctld", "slurm-client", "slurm-wlm-torque", "openmpi-bin", "mpich"]
    assert provide(str(tmp_path), install=lambda lacking: put_programs(tmp_path, lacking)) == ""
    assert missing(str(tmp_path)) == []


def test_what_cannot_be_installed_is_named_with_the_reason(tmp_path: Path) -> None:
    put_programs(tmp_path, [package for package in PACKAGES if package != "mpich"])
    told = provide(str(tmp_path), install=lambda lacking: "no network")
    assert told == "to run these tests: apt-get install mpich (no network)"


def test_the_qsub_of_a_real_pbs_is_not_taken(tmp_path: Path) -> None:
    put_programs(tmp_path, list(PACKAGES))
    (tmp_path / "qsub").write_bytes(b"\x7fELF")
    assert missing(str(tmp_path)) == ["slurm-wlm-torque"]


def test_skipping_is_a_failure_only_where_ci_is_set() -> None:
    assert [is_fatal(environ) for environ in ({}, {"CI": ""}, {"CI": "true"})] == [False, False, True]
