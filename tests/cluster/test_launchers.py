"""Which variables launchers give: what launch.py believes, and what it must not."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cluster.launchers import MPIEXEC, mpiexec, recorded, recorder
from tests.cluster.slurm import Cluster

# The first test on a fresh machine installs Slurm.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RANKS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")
STEP = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID")
ARRAY = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX")


def picked(environs: list[dict[str, str]], names: tuple[str, ...]) -> list[list[str | None]]:
    """The variables that matter, None where one is not set."""
    return [[environ.get(name) for name in names] for environ in environs]


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("mpi", "expected"),
    [
        ("Open MPI", [["0", "2", None, None], ["1", "2", None, None]]),
        ("MPICH", [[None, None, "0", "2"], [None, None, "1", "2"]]),
    ],
)
def test_ranks_of_mpiexec(tmp_path: Path, mpi: str, expected: list[list[str | None]]) -> None:
    mpiexec(mpi, 2, *recorder(tmp_path / "ranks"))
    assert picked(recorded(tmp_path / "ranks"), (*RANKS, *STEP)) == [[*rank, None, None, None] for rank in expected]


def test_one_job_many_ways(cluster: Cluster, tmp_path: Path) -> None:
    def folder(name: str, *launcher: str) -> str:
        return shlex.join([*launcher, *recorder(tmp_path / name)])

    lines = [
        folder("batch"),
        folder("srun", "srun", "-n", "2"),
        folder("interactive", "srun", "--interactive", "--preserve-env"),
        *(folder(mpi, *MPIEXEC[mpi], "2") for mpi in MPIEXEC),
    ]
    job = cluster.submit("\n".join(["set -e", *lines]), "-n", "2")
    cluster.wait(job)
    assert cluster.states(job) == ["COMPLETED"], cluster.output()
    # One process: a script that believed PROCID and NTASKS would do half of the work.
    assert picked(recorded(tmp_path / "batch"), STEP) == [["0", "2", None]]
    assert picked(recorded(tmp_path / "srun"), STEP) == [["0", "2", "0"], ["1", "2", "0"]]
    # The shell of salloc where LaunchParameters has use_interactive_step: one process, too, though in a step.
    assert picked(recorded(tmp_path / "interactive"), STEP) == [["0", "2", "4294967290"]]
    # Slurm's are those of the one daemon that mpiexec starts on a node.
    assert [names[:2] for names in picked(recorded(tmp_path / "Open MPI"), RANKS)] == [["0", "2"], ["1", "2"]]
    assert [names[2:] for names in picked(recorded(tmp_path / "MPICH"), RANKS)] == [["0", "2"], ["1", "2"]]
    for mpi in MPIEXEC:
        assert {environ["SLURM_PROCID"] for environ in recorded(tmp_path / mpi)} == {"0"}


def test_an_array_whose_elements_have_ranks(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(shlex.join(["srun", *recorder(tmp_path / "seen")]), "--array=0-1", "-n", "2")
    cluster.wait(job)
    assert picked(recorded(tmp_path / "seen"), (*ARRAY, *STEP)) == [
        [str(element), "2", "0", "1", str(rank), "2", "0"] for element in range(2) for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        ("1-3", [["1", "3", "1", "3"], ["2", "3", "1", "3"], ["3", "3", "1", "3"]]),
        ("1,5,7", [["1", "3", "1", "7"], ["5", "3", "1", "7"], ["7", "3", "1", "7"]]),
        ("2", [["2", "1", "2", "2"]]),  # one element of an array that is run again says it is all of it
    ],
)
def test_numbers_of_array_elements(cluster: Cluster, tmp_path: Path, array: str, expected: list[list[str]]) -> None:
    job = cluster.submit(shlex.join(recorder(tmp_path / "seen")), f"--array={array}")
    cluster.wait(job)
    assert picked(recorded(tmp_path / "seen"), ARRAY) == expected


def test_an_array_of_the_qsub_of_slurm_wlm_torque(cluster: Cluster, tmp_path: Path) -> None:
    directives = ["#PBS -J 0-3", "#PBS -N pictures", "#PBS -l walltime=00:05:00"]
    job = cluster.qsub("\n".join([*directives, shlex.join(recorder(tmp_path / "seen"))]))
    cluster.wait(job)
    environs = recorded(tmp_path / "seen")
    names = ("PBS_ARRAY_INDEX", "PBS_ARRAY_ID", "PBS_JOBNAME", "PBS_O_WORKDIR")
    assert picked(environs, names) == [[str(index), job, "pictures", str(cluster.jobs)] for index in range(4)]
    assert len({environ["PBS_JOBID"] for environ in environs}) == 4
    assert cluster.facts(f"{job}_0")["TimeLimit"] == "00:05:00"
