"""The job scripts of examples/ with programs in place of those of a batch system that loses a node or fails."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.until import until
from tests.command import write_program

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Runs its last arguments as mpiexec and srun do, on one node.
LAUNCHER = 'while [[ $1 == -* || $1 =~ ^[0-9]+$ ]]; do shift; done; exec "$@"'


def run(script: str, folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a job script in `folder`, whose programs come first in PATH."""
    (folder / "train.store").mkdir()
    (folder / "local").mkdir()
    for name in ("train.py", "nodes"):
        (folder / name).write_text("host\n")
    environ |= {"STORE": "train.store", "LOCAL": f"{folder}/local", "TRAIN": "train.py", "PYTHON": "python.sh"}
    environ |= {"PATH": f"{folder}:{os.environ['PATH']}", "PBS_O_WORKDIR": str(folder), "PBS_JOBID": "7.pbs"}
    environ |= {"PBS_NODEFILE": f"{folder}/nodes", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}
    command = ["bash", str(EXAMPLES / script), *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("saves", [True, False])
def test_pbs_job_is_submitted_again_only_if_it_saved_a_checkpoint(tmp_path: Path, saves: bool) -> None:
    write_program(tmp_path, "mpiexec", LAUNCHER)
    train = f"{'touch train.pt; ' if saves else ''}exec sleep 60"
    write_program(tmp_path, "python.sh", f'[ "$1" = -m ] || {{ {train}; }}')
    write_program(tmp_path, "qsub", 'echo "$MASTER_ADDR:$STORE:$FLAGS:$*" > submitted')
    script = EXAMPLES / "train.pbs"
    done = run("train.pbs", tmp_path, SCRIPT=str(script), LIMIT="1", BIND="", FLAGS="--epochs 9")
    assert done.returncode == (0 if saves else 124), done.stderr
    if saves:  # the next job chooses its own MASTER_ADDR
        assert (tmp_path / "submitted").read_text() == f":{tmp_path}/train.store:--epochs 9:-V {script}\n"
    else:
        assert not (tmp_path / "submitted").exists()


@pytest.mark.parametrize("script", ["train.pbs", "train.slurm"])
def test_failed_removal_of_the_part_does_not_fail_the_job(tmp_path: Path, script: str) -> None:
    write_program(tmp_path, "mpiexec", f'case "$*" in *"--ppn 1 rm "*) exit 1;; esac; {LAUNCHER}')
    keeper = 'for last; do :; done; case "$*" in *--overlap*) mkdir -p "$PART-0"; exit 1;; esac'
    write_program(tmp_path, "srun", f"{keeper}; {LAUNCHER}")
    write_program(tmp_path, "python.sh", "exit 0")
    done = run(script, tmp_path, SCRIPT=str(EXAMPLES / script), BIND="")
    assert done.returncode == 0, done.stderr


def test_process_that_removes_the_part_is_not_killed_if_no_step_starts(tmp_path: Path) -> None:
    """A job that ends starts no step. Its EXIT trap must not kill the srun of the process that removes the part."""
    traps = 'trap "touch killed; exit" TERM; trap "touch alive; exit" WINCH'
    keeper = f'exec > /dev/null 2>&1; {traps}; echo $$ > pid; mkdir -p "$PART-0"; sleep 9 & wait; exit'
    steps = f'case "$*" in *--overlap*) {keeper};; *train.py*|*" rm "*) exit 1;; esac'
    write_program(tmp_path, "srun", f"{steps}; {LAUNCHER}")
    write_program(tmp_path, "python.sh", "exit 0")
    assert run("train.slurm", tmp_path).returncode == 1
    with suppress(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGWINCH)  # bash handles SIGTERM first
    until(lambda: (tmp_path / "alive").exists() or (tmp_path / "killed").exists(), "the end of the keeper")
    assert not (tmp_path / "killed").exists()
