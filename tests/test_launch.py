"""Ranks and tasks from the environment variables of launchers and batch systems."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.launch import ARRAYS, LAUNCHERS, Rank, Task, find_idle_hosts, find_rank, find_task

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "5"}
PMI = {"PMI_RANK": "3", "PMI_SIZE": "6"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
BY_HAND = {"RANK": "7", "WORLD_SIZE": "8"}
TORCHRUN = BY_HAND | {"TORCHELASTIC_RUN_ID": "none"}


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
        (TORCHRUN | {"VC_TASK_INDEX": "3"}, Rank(7, 8, "torchrun")),
        # set by hand in a task of srun: consecutive, or every fourth rank
        (SLURM | {"SLURM_PROCID": "2", "RANK": "5", "WORLD_SIZE": "8"}, Rank(5, 8, "torchrun")),
        (SLURM | {"SLURM_PROCID": "2", "RANK": "6", "WORLD_SIZE": "8"}, Rank(6, 8, "torchrun")),
        (SLURM | {"WORLD_SIZE": "4", "RANK": "", "PMIX_RANK": "1"}, Rank(1, 4, "Slurm")),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Rank(0, 1, "no launcher")),
        (SLURM | {"SLURM_STEP_ID": "4294967290"}, Rank(0, 1, "no launcher")),  # the shell of salloc
    ],
)
def test_launcher_that_takes_precedence(environ: dict[str, str], expected: Rank) -> None:
    assert find_rank(environ) == expected


# Rank and world size of each launcher, and where its documentation or source names both variables.
LAUNCHED = [
    ("RANK", "WORLD_SIZE"),  # https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    ("HOROVOD_RANK", "HOROVOD_SIZE"),  # horovod/runner/gloo_run.py, create_slot_env_vars
    # https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH2 User Guide, MVAPICH2 Parameters
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),  # https://docs.olcf.ornl.gov/systems/summit_user_guide.html (jsrun)
    ("PMI_RANK", "PMI_SIZE"),  # mpich/src/pm/hydra (pmip sets both)
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),  # https://flux-framework.readthedocs.io, flux-environment(7)
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # https://slurm.schedmd.com/srun.html, output environment variables
    # https://docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
    ("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
]


def sge_array(element: int, first: int, last: int, step: int) -> dict[str, str]:
    names = ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST", "SGE_TASK_STEPSIZE")
    return dict(zip(names, map(str, (element, first, last, step)), strict=True))


# The variables of element 3 of an array of 8, the number of tasks that must be given, and where they are named.
ELEMENTS = [
    (sge_array(4, 1, 8, 1), None),  # qsub(1), ENVIRONMENT
    (sge_array(16, 10, 25, 2), None),  # qsub(1), -t
    (sge_array(4, 4, 4, 1), 8),  # qsub(1), -t 4
    # https://www.ibm.com/docs/en/spectrum-lsf, Environment variables set for job execution
    ({"LSB_JOBINDEX": "4", "LSB_JOBINDEX_END": "8", "LSB_JOBINDEX_STEP": "1"}, None),
    ({"LSB_JOBINDEX": "10", "LSB_JOBINDEX_END": "24", "LSB_JOBINDEX_STEP": "3"}, None),  # bsub -J 'prep[1-24:3]'
    # https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
    ({"AWS_BATCH_JOB_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ARRAY_SIZE": "8"}, None),
    # https://cloud.google.com/batch/docs/create-run-job-environment-variables
    ({"BATCH_TASK_INDEX": "3", "BATCH_TASK_COUNT": "8"}, None),
    # https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    ({"JOB_COMPLETION_INDEX": "3"}, 8),
    ({"PBS_ARRAY_INDEX": "3"}, 8),  # PBS Professional User's Guide, job array environment variables
    ({"PBS_ARRAYID": "3"}, 8),  # Torque, qsub(1), -t
    ({"VC_TASK_INDEX": "3"}, 8),  # volcano, docs/user-guide/how_to_use_env_plugin.md
]


@pytest.mark.parametrize("names", LAUNCHED)
def test_rank_and_task_of_each_launcher(names: tuple[str, str]) -> None:
    environ = dict(zip(names, ("3", "8"), strict=True)) | {"SLURM_STEP_ID": "0"}
    rank, task = find_rank(environ), find_task(None, environ)
    assert task is not None
    assert (rank.rank, rank.world_size) == (task.task, task.tasks) == (3, 8)


@pytest.mark.parametrize(("environ", "tasks"), ELEMENTS)
def test_task_of_each_batch_system(environ: dict[str, str], tasks: int | None) -> None:
    found = find_task(tasks, environ)
    assert found is not None
    assert (found.task, found.tasks) == (3, 8)
    if len(environ) == 1:
        with pytest.raises(ValueError, match=f"{next(iter(environ))}=3, but no variable gives the size of the array"):
            find_task(None, environ)


def test_every_launcher_and_array_is_tested() -> None:
    assert {(line.rank, line.world_size) for line in LAUNCHERS} == {*LAUNCHED, ("SLURM_PROCID", "SLURM_NTASKS")}
    indexes = {next(iter(environ)) for environ, _ in ELEMENTS}
    assert {line.index for line in ARRAYS} == indexes | {"SLURM_ARRAY_TASK_ID"}


STALE = {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (SLURM | STALE, "RANK=0 and WORLD_SIZE=1 .torchrun. contradict SLURM_PROCID=1 and .*=4 .Slurm.; unset"),
        (SLURM | {"RANK": "2", "WORLD_SIZE": "8", "SLURM_PROCID": "3"}, "RANK=2 and .* contradict SLURM_PROCID=3"),
        (OPEN_MPI | BY_HAND, "RANK=7 and WORLD_SIZE=8 .* contradict OMPI_COMM_WORLD_RANK=2"),
        (SLURM | STALE | {"TORCHELASTIC_RUN_ID": "none"}, "WORLD_SIZE=1 .torchrun. contradict"),
        (SLURM | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, "_SIZE=1 .* contradict SLURM_PROCID=1"),
    ],
)
def test_launchers_that_contradict_each_other_are_refused(environ: dict[str, str], message: str) -> None:
    for find in (lambda: find_rank(environ), lambda: find_task(None, environ)):
        with pytest.raises(ValueError, match=message):
            find()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "8", "WORLD_SIZE": "8"}, "RANK is 8 and WORLD_SIZE 8, expected 0 <= RANK < WORLD_SIZE"),
        ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, "PMI_RANK is -1"),
        (
            {"JOB_COMPLETION_INDEX": "3"},
            "JOB_COMPLETION_INDEX is 3, but no variable gives the number of ranks; set RANK",
        ),
        ({"VC_TASK_INDEX": "3"}, "VC_TASK_INDEX is 3, but no variable gives the number of ranks; set RANK"),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, "PMI_RANK is 'one', expected a whole number"),
    ],
)
def test_invalid_rank_variables_are_rejected(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_rank(environ)


def slurm_array(element: int, first: int = 0, step: int = 1, count: int = 8, last: int | None = None) -> dict[str, str]:
    return {
        "SLURM_ARRAY_TASK_ID": str(element),
        "SLURM_ARRAY_TASK_MIN": str(first),
        "SLURM_ARRAY_TASK_MAX": str(first + step * (count - 1) if last is None else last),
        "SLURM_ARRAY_TASK_STEP": str(step),
        "SLURM_ARRAY_TASK_COUNT": str(count),
    }


PBSDSH = r"pbsdsh numbers nodes, not processes; .* --task \$PBS_NODENUM --tasks NODES"
ALONE = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}
FROM_A_SHELL_OF_SRUN = ALONE | {"SLURM_NTASKS": "4"}  # sbatch -n 4 was run in a shell started by srun
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}  # a batch script, which is one process


@pytest.mark.parametrize(
    ("environ", "tasks", "expected"),
    [
        ({}, None, None),
        ({"SGE_TASK_ID": "undefined"}, None, None),
        ({"LSB_JOBINDEX": "0", "LSB_JOBINDEX_END": "0"}, None, None),
        (ALONE, None, None),
        (BATCH, None, None),
        (FROM_A_SHELL_OF_SRUN, None, None),
        ({"PBS_TASKNUM": "1"}, None, None),
        (OPEN_MPI, None, (2, 5)),
        (OPEN_MPI, 5, (2, 5)),
        (SLURM | TORCHRUN, None, (7, 8)),
        (slurm_array(3), None, (3, 8)),
        (slurm_array(3) | BATCH, None, (3, 8)),
        (slurm_array(4, first=1), None, (3, 8)),
        (slurm_array(16, first=10, step=2, count=4), None, (3, 4)),
        (slurm_array(3) | SLURM, None, (13, 32)),
        (slurm_array(3) | SLURM | PMI, None, (21, 48)),
        (slurm_array(3) | SLURM, 32, (13, 32)),
        # one element of an array of 16, submitted again
        (slurm_array(5, first=5, count=1), 16, (5, 16)),
        ({"SLURM_ARRAY_TASK_ID": "3", "PBS_ARRAYID": "3"}, 8, (3, 8)),
        ({"PBS_ARRAY_INDEX": "3", "PBS_TASKNUM": "1"}, 8, (3, 8)),
        ({"PBS_ARRAY_INDEX": "3"} | PMI, 24, (21, 24)),
        ({"PBS_TASKNUM": "20000001", "PBS_NODENUM": "1"}, None, None),
        ({"PBS_TASKNUM": "20000001", "PBS_NODENUM": "1", "PBS_ARRAY_INDEX": "3"}, 8, (3, 8)),
    ],
)
def test_task_of_array_and_rank(environ: dict[str, str], tasks: int | None, expected: tuple[int, int] | None) -> None:
    found = find_task(tasks, environ)
    assert (found and (found.task, found.tasks)) == expected


def test_task_names_its_origin() -> None:
    assert str(find_task(None, slurm_array(3) | SLURM)) == "task 13 of 32 (SLURM_ARRAY_TASK_ID=3, rank 1 of 4 (Slurm))"
    assert find_task(8, {"PBS_ARRAY_INDEX": "3"}) == Task(3, 8, "PBS_ARRAY_INDEX=3")


@pytest.mark.parametrize(
    ("environ", "tasks", "message"),
    [
        ({}, 8, "which of the 8 tasks this is: found no launcher or job array"),
        ({"PBS_TASKNUM": "1", "PBS_NODENUM": "0"}, 8, "which of the 8 tasks this is: found no launcher or job array"),
        ({"PBS_TASKNUM": "00000002", "PBS_NODENUM": "0"}, 4, PBSDSH),
        ({"PBS_TASKNUM": "0000000A", "PBS_NODENUM": "0"}, 10, PBSDSH),
        ({"PBS_TASKNUM": "20000001", "PBS_NODENUM": "1"}, 4, PBSDSH),
        ({"PALS_RANKID": "3", "PBS_ARRAY_INDEX": "1"}, 16, "PALS_RANKID is 3, but no variable gives the number"),
        ({"PMIX_RANK": "0"}, None, "PMIX_RANK is 0, but no variable gives the number of ranks; set RANK"),
        (slurm_array(3) | SLURM, 31, "31 tasks were given, expected a multiple of 4: this is rank 1 of 4 .Slurm."),
        (BATCH, 4, "which of the 4 tasks"),
        (OPEN_MPI, 8, "rank 2 of 5 .Open MPI., but 8 tasks were given; start 8 ranks"),
        ({"SLURM_ARRAY_TASK_ID": "3", "PBS_ARRAYID": "4"}, 8, "3 .Slurm. and PBS_ARRAYID=4 .Torque. contradict each"),
        ({"SLURM_ARRAY_TASK_ID": "3"}, None, "no variable gives the size of the array"),
        ({"PBS_ARRAY_INDEX": "8"}, 8, "PBS_ARRAY_INDEX=8 is task 8, expected one below 8"),
        ({"PBS_ARRAY_INDEX": "x"}, 8, "PBS_ARRAY_INDEX is 'x', expected a whole number"),
        (slurm_array(1, 1, 1, 3, last=9), None, r"TASK_ID=1 is in an array with gaps .Slurm.; give the task and"),
        (slurm_array(3) | OPEN_MPI, 15, "is task 17, expected one below 15"),
    ],
)
def test_invalid_task_variables_are_rejected(environ: dict[str, str], tasks: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_task(tasks, environ)


@pytest.mark.parametrize(
    ("rank", "ranks", "here", "hosts", "expected"),
    [
        (0, 2, 2, "a b", "2 of 2 ranks run on this host, but the PBS job has 2 hosts"),
        (0, 4, 4, "a a b b", "4 of 4 ranks run on this host, but the PBS job has 2 hosts"),
        (0, 4, 3, "a b", "3 of 4 ranks run on this host"),
        (1, 2, 2, "a b", None),
        (0, 2, 1, "a b", None),
        (0, 3, 2, "a b", None),
        (0, 2, 2, "a a", None),
        (0, 2, 2, "", None),
    ],
)
def test_all_ranks_on_one_host_of_pbs_job_are_reported(
    tmp_path: Path, rank: int, ranks: int, here: int, hosts: str, expected: str | None
) -> None:
    nodefile = tmp_path / "nodes"
    nodefile.write_text(hosts.replace(" ", "\n"))
    job = {"PBS_NODEFILE": str(nodefile)}
    for names in ((*OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), (*PMI, "MPI_LOCALNRANKS")):
        environ = dict(zip(names, map(str, (rank, ranks, here)), strict=True))
        found = find_idle_hosts(environ | job)
        assert found is None if expected is None else found and found.startswith(expected)
        assert find_idle_hosts(environ) is None
    assert find_idle_hosts(job) is None


@given(ranks=st.integers(1, 5), elements=st.integers(1, 9), first=st.integers(0, 3), step=st.integers(1, 3))
def test_every_task_of_array_is_assigned_once(ranks: int, elements: int, first: int, step: int) -> None:
    arrays = [slurm_array(first + step * element, first, step, elements) for element in range(elements)]
    started = [{"PMI_RANK": str(rank), "PMI_SIZE": str(ranks)} for rank in range(ranks)]
    found = [find_task(None, array | rank) for array in arrays for rank in started]
    whole = elements * ranks
    assert [(task.task, task.tasks) for task in found if task] == [(task, whole) for task in range(whole)]


def test_initialized_process_group_takes_precedence(tmp_path: Path) -> None:
    torch_distributed = pytest.importorskip("torch.distributed")
    torch_distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert find_rank(TORCHRUN) == Rank(0, 1, "torch.distributed")
    finally:
        torch_distributed.destroy_process_group()
    assert find_rank(TORCHRUN) == Rank(7, 8, "torchrun")


def test_finding_rank_does_not_import_torch() -> None:
    code = "import sys; from decodeonce.launch import find_rank; find_rank(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("name", "value"), [("MPI_LOCALNRANKS", "x"), ("PBS_NODEFILE", "/"), ("PMI_RANK", "-")])
def test_invalid_variables_report_no_idle_hosts(name: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\nb\n")
    environ = {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "4", "PBS_NODEFILE": str(tmp_path / "hosts")}
    assert find_idle_hosts(environ)
    assert find_idle_hosts({**environ, name: value}) is None
