"""The command `prep submit` without a batch system."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command import assert_fails, prep, printed
from tests.images import make_tree


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "src", classes=1)


def test_scripts_run_the_given_flags_in_current_folder(src: Path, tmp_path: Path) -> None:
    (tmp_path / "train.sh").touch()
    flags = ["--size", "64", "--workers", "2", "--max-bad=5", "--on-bad", "reject", "--shuffle-seed", "none"]
    words = ["submit", "slurm", "build", "imagenet", "src", "out", *flags, "--tasks", 3, "--cpus", 2, "--nodes", 2]
    shown = printed(*words, "--then", "train.sh", "--rounds", 2, cwd=tmp_path)
    written = "wrote scripts for plan, array of 3 (round 1 of 2) and finish; logs will be here, too"
    assert f"{tmp_path}/out.jobs: {written}" in shown
    assert shown.endswith(f"to submit them, run: bash {tmp_path}/out.jobs/submit.sh\n")
    last = {path.name: path.read_text().splitlines()[-1] for path in (tmp_path / "out.jobs").iterdir()}
    log = f"--log {tmp_path}/out.jobs/logs/"
    assert last["plan.slurm"].endswith(f"prep plan imagenet src out {' '.join(flags)} {log}")
    work = f"prep work out --tasks 6 --max-bad 5 --on-bad reject --workers 2 {log}"
    assert last["array.slurm"].startswith("exec srun --nodes=2 ")
    assert last["array.slurm"].endswith(work)
    assert last["finish.slurm"].endswith(f"prep finish out --max-bad 5 {log}")
    submit = (tmp_path / "out.jobs/submit.sh").read_text().splitlines()
    then = submit.index(f"cd -- {tmp_path}")
    assert submit[then + 1 : then + 3] == [
        f"export STORE={tmp_path}/out",
        'submit then --dependency="afterok:$id" --kill-on-invalid-dep=yes --export=ALL train.sh',
    ]
    assert submit[-2:] == ['scontrol release "$plan"', 'echo "${jobs[*]}"']
    assert not (tmp_path / "out").exists()


def test_printed_command_is_quoted_for_bash(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "new\nline\x1b[1m it's"
    words = ["submit", "slurm", "build", "imagenet", src, out, "--tasks", 2, "--cpus", 1]
    command = prep(*words).stdout.splitlines()[-1].removeprefix("to submit them, run: bash ")
    assert command.isprintable()
    printed = subprocess.run(["bash", "-c", f"printf %s {command}"], capture_output=True, text=True, check=True)
    assert printed.stdout == f"{out}.jobs/submit.sh"


def test_site_profile_is_used_and_its_advice_printed(src: Path, tmp_path: Path) -> None:
    words = ["submit", "pbs", "build", "imagenet", src, tmp_path / "out", "--tasks", 2, "--site", "polaris"]
    assert_fails(prep(*words), 2, "--account is required (ALCF Polaris)")
    result = prep(*words, "--account", "mine", "--time", "0:30:00")
    assert "ALCF Polaris: " in result.stdout
    array = (tmp_path / "out.jobs/array.pbs").read_text().splitlines()
    assert " --workers 64 --log " in array[-1]
    assert {"#PBS -A mine", "#PBS -l walltime=0:30:00", "#PBS -l filesystems=home:eagle"} < set(array)


def test_usage_error_is_one_line(src: Path, tmp_path: Path) -> None:
    words = ["submit", "slurm", "build", "imagenet", src, tmp_path / "out", "--tasks", 2]
    assert_fails(prep(*words), 2, "--cpus is required (Slurm), as in prep submit slurm build")
    words += ["--cpus", 1]
    assert_fails(prep("submit", "pbs", *words[3:]), 2, "expected a build command, as in prep submit pbs build")
    assert_fails(prep(*words[:2], *words[3:]), 2, "expected a build command")
    assert_fails(prep(*words, "--size", "x"), 2, "--size x: expected pixels")
    assert_fails(prep(*words, "--time", "60"), 2, "--time 60: expected H:MM:SS")
    assert_fails(prep(*words, "--time", "0:00:59"), 2, "time is 59 s, expected at least 60 s")
    assert_fails(prep(*words, "--account", "a\nrm x"), 2, "account is 'a\\nrm x', expected a name without spaces or")
    assert_fails(prep(*words, "--then", "nowhere"), 2, "--then nowhere: no such file")
    assert_fails(prep(*words, "--site", "polaris"), 2, "--site polaris uses pbs; run: prep submit pbs")
    assert_fails(prep(*words, "--site", "mars"), 1, "unknown site 'mars'; expected aurora, ")
    assert not (tmp_path / "out.jobs").exists()


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_only_builds_without_secrets_become_job_scripts(tmp_path: Path, scheduler: str) -> None:
    url, out = "https://host/a.tar?signature=hush", tmp_path / "out"
    flags = ("--tasks", "2", "--cpus", "1")
    done = prep("submit", scheduler, "build", "webdataset", url, out, *flags, cwd=tmp_path)
    assert_fails(done, 1, "https://host/a.tar: the URL also has a password or a query, which would be recorded")
    assert "hush" not in done.stderr
    done = prep("submit", scheduler, "convert", "imagenet", "src", out, *flags, cwd=tmp_path)
    assert_fails(done, 2, f"expected a build command, as in prep submit {scheduler} build imagenet /data/imagenet")
    assert not list(tmp_path.iterdir())


def test_scripts_stay_if_submitting_fails(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bash").symlink_to(shutil.which("bash") or "/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    words = ["submit", "slurm", "build", "imagenet", src, tmp_path / "out", "--tasks", 2, "--cpus", 1, "--submit"]
    result, script = prep(*words), f"{tmp_path}/out.jobs/submit.sh"
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"prep: error: {script}: not submitted: ")
    assert result.stderr.endswith(f"fix this and run: bash {script}\n")
    assert "sbatch: command not found" in result.stderr
