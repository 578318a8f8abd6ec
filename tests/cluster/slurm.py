"""A Slurm cluster of three nodes on this host, with real daemons on loopback but without systemd and cgroups."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

from tests import packages
from tests.cluster import keeper, launchers
from tests.cluster.until import until

NODES = ("node1", "node2", "node3")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits before it starts again (default 120 s)
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
# a node can claim more CPUs (below, 4) than the host has
SlurmdParameters=config_overrides
# a node that was set to down stays down
ReturnToService=1
# seconds from SIGTERM to SIGKILL (default 30)
KillWait=2
# keep the states of ended jobs for longer than a test run
MinJobAge=3600
DefMemPerCPU=64
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports} CPUs=4 RealMemory=1024 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """The daemons of a Slurm cluster. All files are in `folder`; jobs run in folder/jobs and write <job>.out there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        self.environ = {**launchers.environ(), "SLURM_CONF": str(folder / "slurm.conf")}
        self._slurmd: dict[str, int] = {}
        self._keeper = subprocess.Popen(
            [sys.executable, keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environ,
            start_new_session=True,  # Ctrl-C must reach only the test run, which then closes the pipe
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._keeper.communicate(timeout=30)

    def _start(self) -> None:
        self._write_files()
        key, socket_ = self.folder / "munge.key", self.folder / "munge.socket"
        # --force: munged wants a socket that all users can reach, but the folders of tests are private.
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket_}"]
        munged += [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "log", "seed")]
        self._launch("munged", *munged)
        until(socket_.exists, self._logs)
        self._launch("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self._start_node(node)
        until(lambda: self._idle_nodes() == len(NODES), self._logs)

    def _start_node(self, node: str) -> None:
        self._slurmd[node] = self._launch(node, "slurmd", "-D", "-N", node)

    def _write_files(self) -> None:
        for name in ("jobs", "state", *NODES):
            (self.folder / name).mkdir(mode=0o755)
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        # slurmd needs a cgroup plugin even if nothing uses it. Only v1 has no requirements on the host.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "plugstack.conf").write_text("optional spank_pbs.so\n")  # PBS_* in addition to SLURM_*
        ports = free_ports(1 + len(NODES))
        conf = CONF.format(
            host=socket.gethostname().split(".")[0],
            user=os.geteuid(),
            folder=self.folder,
            ports=ports,
            nodes=",".join(NODES),
            node_ports=f"[{','.join(map(str, ports[1:]))}]",
        )
        (self.folder / "slurm.conf").write_text(conf)

    def _launch(self, name: str, *command: str) -> int:
        found = shutil.which(command[0], path=packages.PATH) or command[0]
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        print(json.dumps([str(self.folder / f"{name}.log"), found, *command[1:]]), file=self._keeper.stdin, flush=True)
        return int(self._keeper.stdout.readline())

    def _logs(self) -> str:
        tails = {path: path.read_text(errors="replace").splitlines()[-5:] for path in self.folder.glob("*.log")}
        return "Slurm is up\n" + "\n".join(f"{path.name}: {line}" for path, lines in tails.items() for line in lines)

    def _idle_nodes(self) -> int:
        command = ["sinfo", "-h", "-N", "-o", "%N", "-t", "idle"]  # fails until slurmctld listens
        return len(set(subprocess.run(command, env=self.environ, capture_output=True, text=True).stdout.split()))

    def run(self, *command: str | Path, script: str | None = None) -> str:
        """Run a command in the folder of the jobs, with `script` as standard input; return its output."""
        done = subprocess.run(
            command, cwd=self.jobs, env=self.environ, input=script, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a bash script with sbatch; return the job id."""
        if not any(option.startswith("--output") for option in options):
            options += ("--output=%A_%a.out" if any(o.startswith("--array") for o in options) else "--output=%j.out",)
        return self.run("sbatch", "--parsable", *options, script=f"#!/bin/bash\n{script}\n")

    def wait(self, *jobs: str, within: float = 60) -> None:
        """Wait until jobs, including all elements of arrays, have ended, successfully or not."""
        until(lambda: not self.queue(*jobs), lambda: f"the end of {self.queue(*jobs)}\n{self.output()}", within)

    def queue(self, *jobs: str) -> str:
        """Return a line with id, state and reason for each job that has not ended."""
        lines = self.run("squeue", "-h", "-r", "-t", "all", "-j", ",".join(jobs), "-o", "%i %T %r").splitlines()
        return "\n".join(line for line in lines if line.split()[1] not in ENDED)

    def states(self, job: str) -> list[str]:
        """Return the state of each element of an array, or of a single job; "COMPLETED" means success."""
        return self.run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%T").split()

    def facts(self, job: str) -> dict[str, str]:
        """Return the fields that `scontrol show job` prints for a job or element."""
        shown = self.run("scontrol", "-o", "show", "job", job)
        return dict(fact.partition("=")[::2] for fact in shown.split() if "=" in fact)

    def cancel(self, job: str) -> None:
        self.run("scancel", job)

    def signal(self, job: str, number: signal.Signals) -> list[int]:
        """Signal every process of a job or element directly, not through Slurm; return their ids."""
        # scancel --signal=STOP would set the state of the job to STOPPED, which squeue then treats as ended.
        pids = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if self._is_of(job, path)]
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended together with an earlier process
                os.kill(pid, number)
        return pids

    def _is_of(self, job: str, path: Path) -> bool:
        try:
            environ = dict(line.partition("=")[::2] for line in path.read_text(errors="replace").split("\0"))
        except OSError:  # the process is of another user, or has ended
            return False
        array = f"{environ.get('SLURM_ARRAY_JOB_ID')}_{environ.get('SLURM_ARRAY_TASK_ID')}"
        ours = environ.get("SLURM_CONF") == self.environ["SLURM_CONF"]
        return ours and job in (environ.get("SLURM_JOB_ID"), array)

    def requeue(self, job: str) -> None:
        """End a running job and queue it again."""
        self.run("scontrol", "requeue", job)

    def disconnect(self, node: str) -> None:
        """Kill the daemon of a node and mark the node as down. The processes of its jobs keep running.

        Slurm starts the jobs with --requeue again on other nodes.
        """
        os.kill(self._slurmd.pop(node), signal.SIGKILL)
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def resume(self, node: str) -> None:
        """Restart the daemon of a node, and return the node to service."""
        self._start_node(node)
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        until(lambda: self._idle_nodes() == len(NODES), self._logs)

    def restart_crashed(self) -> None:
        """Restart the nodes whose slurmd has crashed: 22.05 of Debian does so now and then when steps are cancelled."""
        for node, pid in list(self._slurmd.items()):
            if not Path(f"/proc/{pid}").exists():
                self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=crashed")
                self.resume(node)

    def output(self) -> str:
        """Return the output of all jobs so far."""
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')}" for path in sorted(self.jobs.glob("*.out")))


def free_ports(number: int) -> list[int]:
    """Return free TCP ports below those that the kernel assigns to clients, so that no client takes one meanwhile."""
    first_client_port = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10000, max(first_client_port, 20000))
    return list(islice(filter(_is_free, random.SystemRandom().sample(ports, 1000)), number))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
