"""The variables that launchers set: those that launch.py uses, and those that it must ignore."""

import shlex
from pathlib import Path

import pytest

from tests.cluster.launchers import MPIEXEC, recorded, recorder
from tests.cluster.slurm import Cluster

# The first test on a fresh machine installs Slurm.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RANKS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE")
STEP = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID")
ARRAY = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX")


def picked(environs: list[dict[str, str]], names: tuple[str, ...]) -> list[list[str | None]]:
    """Return the values of these variables; None if one is not set."""
    return [[environ.get(name) for name in names] for environ in environs]


def test_variables_of_launchers_in_a_slurm_job(cluster: Cluster, tmp_path: Path) -> None:
    def recorded_line(name: str, *launcher: str) -> str:
        return shlex.join([*launcher, *recorder(tmp_path / name)])

    lines = [
        recorded_line("batch"),
        recorded_line("srun", "srun", "-n", "2"),
        recorded_line("interactive", "srun", "--interactive", "--preserve-env"),
        *(recorded_line(mpi, *MPIEXEC[mpi], "2") for mpi in MPIEXEC),
    ]
    job = cluster.submit("\n".join(["set -e", *lines]), "-n", "2")
    cluster.wait(job)
    assert cluster.states(job) == ["COMPLETED"], cluster.output()
    # One process: a script that trusted PROCID and NTASKS would do only half of the work.
    assert picked(recorded(tmp_path / "batch"), STEP) == [["0", "2", None]]
    assert picked(recorded(tmp_path / "srun"), STEP) == [["0", "2", "0"], ["1", "2", "0"]]
    # The shell of salloc if LaunchParameters has use_interactive_step: also one process, although in a step.
    assert picked(recorded(tmp_path / "interactive"), STEP) == [["0", "2", "4294967290"]]
    # The variables of Slurm are those of the one daemon per node that mpiexec starts.
    assert [names[:2] for names in picked(recorded(tmp_path / "Open MPI"), RANKS)] == [["0", "2"], ["1", "2"]]
    assert [names[2:] for names in picked(recorded(tmp_path / "MPICH"), RANKS)] == [["0", "2"], ["1", "2"]]
    for mpi in MPIEXEC:
        assert {environ["SLURM_PROCID"] for environ in recorded(tmp_path / mpi)} == {"0"}


def test_variables_of_array_elements_with_ranks(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(shlex.join(["srun", *recorder(tmp_path / "seen")]), "--array=0-1", "-n", "2")
    cluster.wait(job)
    found = picked(recorded(tmp_path / "seen"), (*ARRAY, *STEP))
    assert found == [[str(element), "2", "0", "1", str(rank), "2", "0"] for element in range(2) for rank in range(2)]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        ("1-3", [["1", "3", "1", "3"], ["2", "3", "1", "3"], ["3", "3", "1", "3"]]),
        ("1,5,7", [["1", "3", "1", "7"], ["5", "3", "1", "7"], ["7", "3", "1", "7"]]),
        ("2", [["2", "1", "2", "2"]]),  # a resubmitted element looks like an array of one
    ],
)
def test_variables_of_array_elements(cluster: Cluster, tmp_path: Path, array: str, expected: list[list[str]]) -> None:
    job = cluster.submit(shlex.join(recorder(tmp_path / "seen")), f"--array={array}")
    cluster.wait(job)
    assert picked(recorded(tmp_path / "seen"), ARRAY) == expected
