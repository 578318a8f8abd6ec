"""The text of the job scripts that are written for batch systems."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decodeonce.errors import BuildError
from decodeonce.launch import launch_variables
from decodeonce.prep.jobs.base import Chain, Site
from decodeonce.prep.jobs.chain import write_scripts
from decodeonce.prep.jobs.pbs import PBS as PBSCommands
from decodeonce.prep.jobs.pbs import current_umask
from decodeonce.prep.jobs.site import parse_site, read_site, site_names
from decodeonce.prep.jobs.slurm import Slurm
from tests.command import assert_fails, prep, write_program
from tests.images import make_tree, tree_bytes
from tests.packages import NOT_DEV

COMMANDS = [["prep", "plan", "imagenet", "my src", "OUT"], ["prep", "work", "OUT"], ["prep", "finish", "OUT"]]
SLURM = Site("here", "slurm", "nowhere", "--qos", "srun --ntasks={nodes} --cpus-per-task={cpus}", ("-C cpu",))
PBS = Site("there", "pbs", "nowhere", "-q", "mpiexec -n {nodes}", ("-l place=scatter",), ("module load python",))

PBS_FREE = Site("free", "pbs", "nowhere", "-q", "mpiexec -n {nodes}", ("-l place=free:excl",))


def written_scripts(tmp_path: Path, site: Site, chain: Chain) -> dict[str, list[str]]:
    """Write the scripts of a chain and return the lines of each, by name."""
    submit = write_scripts(tmp_path / "OUT", site, chain, COMMANDS, tmp_path)
    assert submit == tmp_path / "OUT.jobs/submit.sh"
    texts = {path.name: path.read_text().replace(" \\\n  ", " ") for path in submit.parent.iterdir()}
    return {name: text.splitlines() for name, text in texts.items()}


def unset(*, keep: str) -> str:
    """Return the line that unsets the variables of launchers, arrays and steps, except those of the job itself."""
    return f"unset {' '.join(name for name in launch_variables() if not name.startswith(keep) or '_STEP_' in name)}"


def test_slurm_scripts(tmp_path: Path) -> None:
    chain = Chain(tasks=16, cpus=32, rounds=2, max_running=8, account="a1", queue="regular", seconds=14400, mem="64G")
    scripts = written_scripts(tmp_path, SLURM, chain)
    assert sorted(scripts) == ["array.slurm", "finish.slurm", "plan.slurm", "submit.sh"]
    assert scripts["array.slurm"] == [
        "#!/bin/bash",
        "#SBATCH --job-name=OUT-array",
        "#SBATCH --output=array-%A_%a.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=32",
        "#SBATCH --mem=64G",
        "#SBATCH --time=4:00:00",
        "#SBATCH --account=a1",
        "#SBATCH --qos=regular",
        "#SBATCH --array=0-15%8",
        "#SBATCH --signal=B:USR1@120",
        "#SBATCH -C cpu",
        f"cd -- {tmp_path} || exit",
        unset(keep="SLURM_"),
        "exec prep work OUT",
    ]
    assert scripts["plan.slurm"][-1] == "exec prep plan imagenet 'my src' OUT"
    assert {"#SBATCH --output=plan-%j.log", "#SBATCH --cpus-per-task=4"} < set(scripts["plan.slurm"])
    assert not [line for line in scripts["finish.slurm"] if "--array" in line or "--signal" in line]
    assert [line for line in scripts["submit.sh"] if line.startswith("submit ")] == [
        "submit plan --hold plan.slurm  # held until the chain is complete",
        'submit array --dependency="afterok:$plan" --kill-on-invalid-dep=yes array.slurm',
        "submit 'round 2' --dependency=\"afterok:$plan,afternotok:$rounds\" --kill-on-invalid-dep=yes array.slurm"
        "  # finished blocks are skipped",
        'submit finish --dependency="afterok:$plan,afterany:$rounds" --kill-on-invalid-dep=yes finish.slurm',
    ]


def test_pbs_scripts(tmp_path: Path) -> None:
    chain = Chain(tasks=16, cpus=32, rounds=2, max_running=8, account="a1", queue="prod", seconds=3600, mem="64G")
    scripts = written_scripts(tmp_path, PBS, chain)
    assert scripts["array.pbs"] == [
        "#!/bin/bash",
        "#PBS -N OUT-array",
        "#PBS -j oe",
        "#PBS -r y",
        f"#PBS -W umask={current_umask():03o}",
        "#PBS -l select=1:ncpus=32:mpiprocs=1:mem=64gb",
        "#PBS -l walltime=1:00:00",
        "#PBS -A a1",
        "#PBS -q prod",
        "#PBS -J 0-15%8",
        "#PBS -l place=scatter",
        f"cd -- {tmp_path} || exit",
        unset(keep="PBS_"),
        "module load python",
        "exec timeout --preserve-status --signal=USR1 3480 prep work OUT",
    ]
    assert [line for line in scripts["submit.sh"] if line.startswith("submit ")] == [
        "submit plan -h plan.pbs  # held until the chain is complete",
        'submit array -W depend="afterok:$plan" array.pbs',
        "submit 'round 2' -W depend=\"afterok:$plan,afterany:$rounds\" array.pbs  # finished blocks are skipped",
        'submit finish -W depend="afterok:$plan,afterany:$rounds" finish.pbs',
    ]
    assert scripts["submit.sh"][-2:] == ['qrls "$plan"', 'echo "${jobs[*]}"']
    assert not [line for line in written_scripts(tmp_path, PBS, Chain(tasks=1, cpus=1))["array.pbs"] if "-J" in line]


def test_elements_of_several_nodes_use_the_launcher_of_the_site(tmp_path: Path) -> None:
    chain = Chain(tasks=4, cpus=8, nodes=2, seconds=400)
    slurm, pbs = written_scripts(tmp_path, SLURM, chain), written_scripts(tmp_path, PBS, chain)
    assert slurm["array.slurm"][-1] == "exec srun --ntasks=2 --cpus-per-task=8 prep work OUT"
    assert {"#SBATCH --nodes=2", "#SBATCH --signal=USR1@100"} < set(slurm["array.slurm"])
    assert "#SBATCH --nodes=1" in slurm["plan.slurm"]
    started = "exec mpiexec -n 2 timeout --preserve-status --signal=USR1 300 prep work OUT"
    assert pbs["array.pbs"][-1] == started
    assert "#PBS -l select=2:ncpus=8:mpiprocs=1" in pbs["array.pbs"]
    generic = written_scripts(tmp_path, read_site("generic-pbs"), chain)
    for scripts, count in ((pbs, 1), (generic, 1), (written_scripts(tmp_path, PBS_FREE, chain), 0)):
        assert scripts["array.pbs"].count("#PBS -l place=scatter") == count
    assert "#PBS -l place=scatter" not in generic["plan.pbs"]


def test_mail_and_directives_of_the_array(tmp_path: Path) -> None:
    chain = Chain(tasks=2, cpus=1, mail="me@example.org")
    slurm = written_scripts(tmp_path, replace(SLURM, array_directives=("--gres=disk",)), chain)
    pbs = written_scripts(tmp_path, replace(PBS, array_directives=("-l disk=1",)), chain)
    mails = {name: [line for line in lines if " --mail-type" in line] for name, lines in slurm.items()}
    assert mails["plan.slurm"] == ["#SBATCH --mail-type=FAIL"]
    assert mails["array.slurm"] == ["#SBATCH --mail-type=NONE"]
    assert mails["finish.slurm"] == ["#SBATCH --mail-type=END,FAIL"]
    assert "#SBATCH --mail-user=me@example.org" in slurm["plan.slurm"]
    for name, events in {"plan": "a", "array": "n", "finish": "ae"}.items():
        assert {"#PBS -M me@example.org", f"#PBS -m {events}"} < set(pbs[f"{name}.pbs"])
    assert [name for name, lines in slurm.items() if "#SBATCH --gres=disk" in lines] == ["array.slurm"]
    assert [name for name, lines in pbs.items() if "#PBS -l disk=1" in lines] == ["array.pbs"]


def test_names_that_a_scheduler_treats_specially_are_refused_for_it(tmp_path: Path) -> None:
    for name in ("my script.pbs", "it's.pbs", 'a"b.pbs'):
        chain = Chain(tasks=1, cpus=1, then=Path(name))
        with pytest.raises(BuildError, match="pbs refuses spaces and quotes in the path of a script; rename it"):
            write_scripts(tmp_path / "OUT", PBS, chain, COMMANDS, tmp_path)
        write_scripts(tmp_path / "OUT", SLURM, chain, COMMANDS, tmp_path)
    for name in ("100%", "a\\b"):
        with pytest.raises(BuildError, match=r"slurm treats '.*' in the path of a log specially"):
            write_scripts(tmp_path / name, SLURM, Chain(tasks=1, cpus=1), COMMANDS, tmp_path)
        write_scripts(tmp_path / name, PBS, Chain(tasks=1, cpus=1), COMMANDS, tmp_path)


def test_failed_submission_cancels_the_chain(tmp_path: Path) -> None:
    submit = write_scripts(tmp_path / "OUT", SLURM, Chain(tasks=2, cpus=1), COMMANDS, tmp_path)
    log, folder = tmp_path / "log", tmp_path / "bin"
    log_ = shlex.quote(str(log))

    def submit_with(**programs: str) -> subprocess.CompletedProcess[str]:
        for name, body in programs.items():
            write_program(folder, name, body)
        log.write_text("")
        environ = {"PATH": f"{folder}:/bin:/usr/bin"}
        return subprocess.run(["bash", submit], env=environ, capture_output=True, text=True)

    print_id = f'echo "$@" >> {log_}; echo "$(wc -l < {log_});far"'
    refuse_finish = f'case "$*" in *finish*) exit 1;; esac; {print_id}'
    log_call = f'echo "$SLURM_CLUSTERS $(basename $0) $*" >> {log_}'
    gone = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
    done = submit_with(sbatch=print_id, scancel=log_call, scontrol=log_call, squeue=gone)
    assert (done.returncode, done.stdout) == (0, "1 2 3\n")
    shown = [f"far scontrol show job {job}" for job in (1, 2, 3)]
    assert log.read_text().splitlines()[3:] == [*shown, "far scontrol release 1"]
    done = submit_with(sbatch=refuse_finish)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert log.read_text().splitlines()[2:] == ["far scancel 2", "far scancel 1"]
    done = submit_with(scancel="exit 1")
    assert done.stderr == "could not cancel 2\ncould not cancel 1\n"
    recorded = (submit.parent / "submitted").read_text()
    assert recorded == "plan\t1\tslurm\tfar\narray\t2\tslurm\tfar\n", "prep cancel needs it"
    done = submit_with(sbatch=print_id, scancel=log_call, scontrol=f'{log_call}; [ "$1" = show ]')
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert log.read_text().splitlines()[-3:] == [f"far scancel {job}" for job in (3, 2, 1)]


def test_queue_that_does_not_answer_is_not_a_sign_that_the_chain_ended(tmp_path: Path) -> None:
    submit = write_scripts(tmp_path / "OUT", SLURM, Chain(tasks=2, cpus=1), COMMANDS, tmp_path)
    (submit.parent / "submitted").write_text("plan\t7\tslurm\t\n")
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def submit_while(squeue: str) -> subprocess.CompletedProcess[str]:
        for name, body in {"squeue": squeue, "sbatch": "echo 8", "scontrol": "exit 0"}.items():
            write_program(tmp_path, name, body)
        return subprocess.run(["bash", submit], env=environ, capture_output=True, text=True)

    done = submit_while("echo 'Socket timed out' >&2; exit 1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("plan 7 may still be in the queue: Socket timed out; run this again when")
    assert submit_while("echo 'a warning' >&2").stdout == "8 8 8\n"


def test_scripts_of_queued_jobs_are_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(tasks: int) -> None:
        write_scripts(tmp_path / "OUT", SLURM, Chain(tasks=tasks, cpus=1), COMMANDS, tmp_path)

    write(2)
    (tmp_path / "OUT.jobs/submitted").write_text("plan\t7\tslurm\t\narray\t8\tslurm\t\n")
    write_program(tmp_path, "squeue", "[ $6 = 7 ] || echo PENDING,Priority")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write(2)  # the same scripts
    with pytest.raises(BuildError, match=r"array 8 of another submission may be in the queue \(pending \(Priority"):
        write(3)
    write_program(tmp_path, "squeue", "")
    write(3)


def test_status_and_logs_tell_how_jobs_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scripts(tmp_path / "OUT", SLURM, Chain(tasks=2, cpus=1), COMMANDS, tmp_path)
    jobs = tmp_path / "OUT.jobs"
    (jobs / "submitted").write_text("".join(f"{line}\tslurm\t\n" for line in ("plan\t7", "array\t8", "finish\t9")))
    write_program(tmp_path, "squeue", "")
    for folder in (tmp_path / "src", jobs / "logs"):
        folder.mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for number, words in {"7": ["plan", "folder", "src", "OUT"], "9": ["finish", "OUT"]}.items():
        done = prep(*words, "--log", f"{jobs}/logs/{number}.jsonl", cwd=tmp_path, SLURM_JOB_ID=number)
        (jobs / f"{words[0]}-{number}.log").write_text(done.stderr)
        assert done.returncode == 1
    (jobs / "array-8_1.log").write_text("starts\nslurmstepd: error: *** JOB 8 CANCELLED DUE TO TIME LIMIT ***\n\n")
    with (jobs / "logs/7.jsonl").open("a") as log:  # of another process with the same host and pid; a line is torn
        log.write('{"event": "start", "job": "10"}\n{"event": "mess"}}\n')
    printed = prep("status", "OUT", cwd=tmp_path).stdout
    assert printed.startswith("state  ended\n")
    assert "plan 7: failed: prep: error: src: " in printed
    assert "array 8: ended without a message: slurmstepd: error: *** JOB 8 CANCELLED DUE TO TIME LIMIT ***; " in printed
    assert "finish 9: failed: prep: error: OUT: no such folder" in printed
    shown = prep("logs", "OUT", "--lines", 1, cwd=tmp_path).stdout.splitlines()
    assert (len(shown), shown[0], shown[3]) == (6, f"==> {jobs}/plan-7.log <==", "")
    assert_fails(prep("logs", "elsewhere", cwd=tmp_path), 1, "elsewhere.jobs: this build was not submitted with")


@pytest.mark.parametrize("name", ["submitted", "logs"])
def test_links_in_the_folder_of_the_jobs_are_refused(tmp_path: Path, name: str) -> None:
    submit = write_scripts(tmp_path / "OUT", SLURM, Chain(tasks=1, cpus=1), COMMANDS, tmp_path)
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (submit.parent / name).symlink_to(precious)
    with pytest.raises(BuildError, match=f"{name}: is a link, through which the jobs would write elsewhere; remove it"):
        write_scripts(tmp_path / "OUT", SLURM, Chain(tasks=1, cpus=1), COMMANDS, tmp_path)
    if name == "submitted":
        done = subprocess.run(["/bin/bash", submit], env={"PATH": "/none"}, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("line", ["plan\t--user=root\tslurm\t", "plan\t7\tcron\t", "plan\t7\tslurm"])
def test_changed_record_of_a_submission_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "OUT.jobs").mkdir()
    (tmp_path / "OUT.jobs/submitted").write_text(f"{line}\n")
    for command in ("cancel", "status"):
        done = prep(command, tmp_path / "OUT")
        assert (done.returncode, "submitted: damaged; see the jobs in your queue" in done.stderr) == (1, True)


def test_directives_of_the_user_are_in_every_script(tmp_path: Path) -> None:
    chain = Chain(tasks=2, cpus=1, directives=("--reservation=mine", "--comment='a b'"))
    scripts = written_scripts(tmp_path, SLURM, chain)
    for name in ("plan", "array", "finish"):
        assert {"#SBATCH --reservation=mine", "#SBATCH --comment='a b'"} < set(scripts[f"{name}.slurm"])
    with pytest.raises(ValueError, match="expected an option of the batch system on a single line"):
        Chain(tasks=2, cpus=1, directives=("--x\nrm -r",))


def test_submission_from_an_allocation_passes_none_of_its_variables(tmp_path: Path) -> None:
    """Slurm refuses a step whose job has both SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE."""
    submit = write_scripts(tmp_path / "OUT", SLURM, Chain(tasks=2, cpus=1), COMMANDS, tmp_path)
    for name, body in {"sbatch": f"env >> {tmp_path}/seen; echo 7", "scontrol": "exit 0"}.items():
        write_program(tmp_path, name, body)
    own = {"SLURM_JOB_ID": "5", "SLURM_MEM_PER_CPU": "64", "SLURM_CONF": "here", "SBATCH_ACCOUNT": "mine"}
    environ = {**os.environ, **own, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", submit], env=environ, capture_output=True, check=False).returncode == 0
    seen = (tmp_path / "seen").read_text()
    found = {name for name in own if f"{name}=" in seen}
    assert found == {"SLURM_CONF", "SBATCH_ACCOUNT"}


def test_states_that_squeue_and_qstat_print() -> None:
    reason = "ReqNodeNotAvail, UnavailableNodes:node[1-2]"
    squeue = f"PENDING,{reason}\nPENDING,Dependency\nRUNNING,None\nCOMPLETING,None\n"
    assert Slurm().parse_states(squeue) == [f"pending ({reason})", "waiting", "running", "completing"]
    head = "Job id   Name   User   Time Use S Queue\n-------- ------ ------ -------- - -----\n"
    states = [f"1[{index}].pbs  array  me  00:00:01 {letter} workq\n" for index, letter in enumerate("BXRQ")]
    assert PBSCommands().parse_states(head + "".join(states)) == ["running", "pending"]
    assert PBSCommands().parse_states(f"{head}2.pbs  finish  me  0 H workq\n") == ["waiting"]
    assert PBSCommands().parse_states(f"{head}\n2.pbs  finish  me  0 H workq\n\nnote\n") == ["waiting"]


@pytest.mark.parametrize("name", site_names())
def test_every_profile_makes_scripts(tmp_path: Path, name: str) -> None:
    site = read_site(name)
    assert site.source.startswith("https://")
    scripts = written_scripts(tmp_path, site, Chain(tasks=2, cpus=8, nodes=2))
    (array,) = (lines for script, lines in scripts.items() if script.startswith("array"))
    assert array[-1] == f"exec {site.launch_command('prep work OUT', nodes=2, cpus=8)}"
    assert "2" in array[-1]
    assert set(site.defaults) | set(site.needs) <= {"account", "queue", "time", "cpus", "mem", "nodes", "max_running"}


VALID = 'name = "n"\nscheduler = "pbs"\nsource = "s"\nlaunch = "x {nodes}"\n'


def test_invalid_profile_is_refused() -> None:
    for text, message in (
        ("name = ", "x: Invalid value"),
        ('name = "n"', "scheduler is None, expected slurm or pbs"),
        (VALID.partition("launch")[0], "missing 1 required positional argument: 'launch'"),
        (VALID.replace("pbs", "lsf"), "scheduler is 'lsf', expected slurm or pbs"),
        (VALID + "color = 1", "unknown key 'color'"),
        (VALID + 'needs = ["luck"]', "unknown flag 'luck'"),
        (VALID + "[defaults]\nluck = 1", "unknown key 'luck'"),
        (VALID + "[defaults]\ntime = 3600", "time is 3600, expected str"),
        (VALID + "[defaults]\nnodes = 0", "nodes is 0, expected at least 1"),
        (VALID.replace("{nodes}", "{ranks}"), "launch has {ranks}"),
    ):
        with pytest.raises(BuildError, match=message):
            parse_site(text, "x")


def test_profile_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(VALID + "[defaults]\ncpus = 3\n")
    site = read_site(str(tmp_path / "own.toml"))
    assert (site.name, site.queue_flag, site.defaults) == ("n", "-q", {"cpus": 3})
    with pytest.raises(BuildError, match=r"nowhere.toml: .*No such file"):
        read_site(str(tmp_path / "nowhere.toml"))
    with pytest.raises(BuildError, match=r"unknown site 'nersc'; expected .*generic-slurm"):
        read_site("nersc")


# ---- The jobs of examples/kubernetes.yaml: their schema, and their commands, which run here as in pods

KUBERNETES = Path(__file__).resolve().parents[2] / "examples/kubernetes.yaml"


def kubernetes_jobs(data: str = "/data") -> list[dict[str, Any]]:
    """Return the jobs of plan, tasks and finish, with the claim mounted at `data`."""
    yaml = pytest.importorskip("yaml", reason=NOT_DEV.format("kubernetes-validate"))
    listed = yaml.safe_load(KUBERNETES.read_text().replace('"/data', f'"{data}'))
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    return list(listed["items"])


def test_kubernetes_jobs_match_the_published_schemas() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=NOT_DEV.format("kubernetes-validate")).validate
    for job, step in zip(kubernetes_jobs(), ("plan", "work", "finish"), strict=True):
        for version in ("1.25", "1.37"):  # the oldest and the newest published schema
            validate(job, version, strict=True)
        template = job["spec"]["template"]
        assert job["metadata"] == {"name": f"train-{step}", "labels": {"build": "train", "step": step}}
        assert template["metadata"]["labels"] == job["metadata"]["labels"]
        user, [container] = template["spec"]["securityContext"], template["spec"]["containers"]
        assert {type(user[name]) for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int}
        assert container["envFrom"] == [{"secretRef": {"name": "object-store", "optional": True}}]
        [mount], [volume] = container["volumeMounts"], template["spec"]["volumes"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], "/data")
        assert "/data/train.store" in container["command"]


def test_kubernetes_tasks_agree_with_their_job() -> None:
    work = kubernetes_jobs()[1]["spec"]
    [container] = work["template"]["spec"]["containers"]
    flags = dict(zip(container["command"][3::2], container["command"][4::2], strict=True))
    assert flags == {"--tasks": str(work["completions"]), "--workers": container["resources"]["requests"]["cpu"]}


@pytest.mark.long
def test_kubernetes_commands_build_the_store(tmp_path: Path) -> None:
    make_tree(tmp_path / "imagenet", classes=3)
    for job in kubernetes_jobs(str(tmp_path)):
        [container], pods = job["spec"]["template"]["spec"]["containers"], []
        program, *words = [word.replace("$$", "$") for word in container["command"]]
        assert program == "prep"
        for index in range(job["spec"].get("completions", 1)):
            indexed = {"JOB_COMPLETION_INDEX": str(index)} if "completions" in job["spec"] else {}
            if "--workers" in words:
                words[words.index("--workers") + 1] = "1"
            command = [sys.executable, "-m", "decodeonce.cli", *words]
            pods.append(subprocess.Popen(command, env={**os.environ, **indexed}))
        assert {pod.wait(timeout=120) for pod in pods} == {0}
    assert prep("build", "imagenet", "imagenet", "alone", cwd=tmp_path).returncode == 0
    assert tree_bytes(tmp_path / "train.store") == tree_bytes(tmp_path / "alone")
