"""Start daemons, and end all their processes when standard input is closed.

Each line of standard input is a JSON list, [log, program, argument, ...]; the answer is the process id of the daemon. A
test run closes the pipe when it ends or is killed. All processes that a daemon starts remain descendants of this
process, even those that are made to outlive their parent, such as slurmstepd. So no process has to be found by its name
or by an id that may belong to another process by then.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def main() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    try:
        for line in sys.stdin:
            log, *command = json.loads(line)
            print(start(Path(log), command), flush=True)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end_all()


def start(log: Path, command: list[str]) -> int:
    """Start a program that writes its output to a log; return its process id. If it dumps core, it does so there."""
    with log.open("ab") as output:
        return subprocess.Popen(command, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=output, stderr=output).pid


def reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_all() -> None:
    """Kill the children until none is left: the children of a killed process become children of this one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := children.read_text().split():
        for pid in map(int, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
