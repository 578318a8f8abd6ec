"""Who says which rank this is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from decodeonce.launch import Rank, find_rank

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5"}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "6"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
TORCHRUN = {"RANK": "7", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Rank(0, 1, "no launcher")),
        (OPEN_MPI, Rank(2, 5, "Open MPI")),
        (PMI, Rank(3, 6, "PMI")),
        (SLURM, Rank(1, 4, "Slurm")),
        (TORCHRUN, Rank(7, 8, "torchrun")),
        (SLURM | TORCHRUN | PMI | OPEN_MPI, Rank(7, 8, "torchrun")),
        (SLURM | OPEN_MPI, Rank(2, 5, "Open MPI")),
        (SLURM | {"WORLD_SIZE": "4"}, Rank(1, 4, "Slurm")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Rank(0, 1, "no launcher")),
    ],
)
def test_the_launcher_that_is_believed(environ: dict[str, str], expected: Rank) -> None:
    assert find_rank(environ) == expected


def test_the_environment_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, *OPEN_MPI, *PMI, *SLURM):
        monkeypatch.delenv(name, raising=False)
    assert str(find_rank()) == "rank 0 of 1 (no launcher)"
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("PMI_SIZE", "6")
    assert str(find_rank()) == "rank 3 of 6 (PMI)"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK is 8 and WORLD_SIZE 8, expected 0 <= RANK < WORLD_SIZE"),
        ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, "PMI_RANK is -1"),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, "PMI_RANK is 'one', expected a whole number"),
    ],
)
def test_variables_that_make_no_sense(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_rank(environ)


def test_an_initialised_process_group_is_believed_first(tmp_path: Path) -> None:
    torch_distributed = pytest.importorskip("torch.distributed")
    torch_distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert find_rank(TORCHRUN) == Rank(0, 1, "torch.distributed")
    finally:
        torch_distributed.destroy_process_group()
    assert find_rank(TORCHRUN) == Rank(7, 8, "torchrun")


def test_asking_does_not_import_torch() -> None:
    code = "import sys; from decodeonce.launch import find_rank; find_rank(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
