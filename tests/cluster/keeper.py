"""Starts daemons, and when its standard input ends, ends all that ever came of them.

It reads a line of JSON for each, [log, program, argument, ...], and answers with the process id. A test run that is
killed closes the pipe like one that ends. What a daemon starts stays below this process, even what is made to outlive
its parent, as slurmstepd is: nothing has to be found again by its name, or by a number that is another's by then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
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
    """Start a program, its output into the log."""
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output).pid


def reap() -> None:
    """Take note of the children that ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def end_all() -> None:
    """Kill every process below this one, and those that came meanwhile."""
    while below := descendants(os.getpid()):
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        reap()


def descendants(ancestor: int) -> list[int]:
    """The processes below one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):  # it ended
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [ancestor]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


if __name__ == "__main__":
    main()
