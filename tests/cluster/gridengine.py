"""A Grid Engine with one node on this host: real daemons of Debian's packages, on loopback.

The packages are unpacked, not installed, because their qsub would replace that of slurm-wlm-torque.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import packages
from tests.cluster import keeper, launchers
from tests.cluster.slurm import free_ports
from tests.cluster.until import until

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "gridengine-common")
LIBRARIES = ["libhwloc15", "libjemalloc2", "libmunge2", "libssl3", "libtirpc3"]
PROGRAMS = Path("/usr/lib/gridengine")  # compiled into the programs

BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn false
spooling_method berkeleydb
spooling_lib libspoolb
spooling_params {folder}/spool
binary_path {programs}
qmaster_spool_dir {folder}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
# qconf wants all attributes of a queue, see queue_conf(5).
QUEUE = """\
qname all.q
hostlist localhost
slots 4
qtype BATCH
initial_state default
seq_no 0
nsuspend 1
priority 0
processors UNDEFINED
rerun FALSE
suspend_interval 0:5:0
min_cpu_interval 0:5:0
notify 0:0:60
tmpdir /tmp
shell /bin/sh
shell_start_mode unix_behavior
"""
NONE = """\
load_thresholds suspend_thresholds ckpt_list pe_list prolog epilog starter_method suspend_method resume_method
terminate_method owner_list user_lists xuser_lists subordinate_list complex_values projects xprojects calendar
"""
INFINITY = "rt cpu fsize data stack core rss vmem"


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Unpack the packages; yield the folder with their data. Skip the test if that is impossible, or fail it in CI."""
    with packages.install_lock():
        problem = packages.apt_get(LIBRARIES) if os.geteuid() or not shutil.which("apt-get") else ""
        if not problem:
            packages.apt_get(LIBRARIES)
            done = subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True)
            problem = done.stderr if done.returncode else ""
    if problem:
        (pytest.fail if packages.is_fatal(os.environ) else pytest.skip)(f"no Grid Engine: {problem}")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    if PROGRAMS.is_symlink() and PROGRAMS.readlink().is_relative_to(tempfile.gettempdir()):
        PROGRAMS.unlink()  # a link that a killed test run left
    if os.path.lexists(PROGRAMS):
        pytest.skip(f"{PROGRAMS}: this machine has a Grid Engine of its own")
    PROGRAMS.symlink_to(folder / "usr/lib/gridengine")
    try:
        yield folder / "usr/share/gridengine"
    finally:
        PROGRAMS.unlink()


class GridEngine:
    """The daemons of a Grid Engine. All its files are in `folder`."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        ports = dict(zip(("SGE_QMASTER_PORT", "SGE_EXECD_PORT"), map(str, free_ports(2)), strict=True))
        root = {"SGE_ROOT": str(folder), "SGE_CELL": "default", "SGE_ND": "1", "LD_LIBRARY_PATH": str(PROGRAMS)}
        self._environ = {**launchers.environ(), **root, **ports}
        self._write_files(data)
        command = [sys.executable, keeper.__file__]
        pipe = subprocess.PIPE
        self._keeper = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=self._environ)
        try:
            self._start("sge_qmaster")
            until(lambda: self._try("qconf", "-ah", "localhost"), self._logs)
            self.run("qconf", "-as", "localhost")
            self._start("sge_execd")
            self.run("qconf", "-Aq", str(folder / "queue"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the daemons and their jobs."""
        self._keeper.communicate(timeout=30)

    def _write_files(self, data: Path) -> None:
        folder, common = self._folder, self._folder / "default/common"
        for path in (common, folder / "qmaster/job_scripts", folder / "spool", folder / "execd"):
            path.mkdir(parents=True)
        (common / "bootstrap").write_text(BOOTSTRAP.format(folder=folder, programs=PROGRAMS))
        (common / "act_qmaster").write_text("localhost\n")
        (common / "host_aliases").write_text(f"localhost {socket.gethostname()}\n")
        (folder / "util").symlink_to(data / "util")
        config = (data / "default-configuration").read_text()
        for name, value in {"execd_spool_dir": str(folder / "execd"), "min_uid": "0", "min_gid": "0"}.items():
            config = re.sub(rf"(?m)^{name} .*", f"{name} {value}", config)
        (folder / "configuration").write_text(config)
        lines = [f"{name} NONE\n" for name in NONE.split()]
        lines += [f"{kind}_{name} INFINITY\n" for kind in "sh" for name in INFINITY.split()]
        (folder / "queue").write_text(QUEUE + "".join(lines))
        self.run("spoolinit", "berkeleydb", "libspoolb", str(folder / "spool"), "init")
        resources = data / "util/resources"
        for what in (["configuration", folder / "configuration"], ["complexes", resources / "centry"]):
            self.run("spooldefaults", *map(str, what))
        self.run("spooldefaults", "usersets", str(resources / "usersets"))
        self.run("spooldefaults", "managers", "root")

    def _start(self, program: str) -> None:
        stdin, stdout = self._keeper.stdin, self._keeper.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps([str(self._folder / f"{program}.log"), str(PROGRAMS / program)]), file=stdin, flush=True)
        stdout.readline()

    def _try(self, program: str, *arguments: str) -> bool:
        return not self._run(program, *arguments).returncode

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAMS / program), *arguments]
        return subprocess.run(command, cwd=self._folder, env=self._environ, capture_output=True, text=True, timeout=60)

    def _logs(self) -> str:
        return "Grid Engine is up\n" + "\n".join(path.read_text() for path in self._folder.glob("*.log"))

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of Grid Engine; return its output."""
        done = self._run(program, *arguments)
        assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout
