"""Run user code, such as a dataset, in a child process of the command, because it may end its process.

Just before the first import of such code, the command forks. The child completes the command. This process waits for
it, and exits with its code or raises how it ended. A fork prints, locks and parses nothing a second time.
"""

from __future__ import annotations

import mmap
import os
import signal
from typing import NoReturn

from decodeonce import cli
from decodeonce.cli import LAST_BLOCKS, STOPPING
from decodeonce.prep.processes import child

_names: list[str] = []  # functions and classes of the user that are imported, `module:name`


def before_import(name: str) -> None:
    """Fork if `name` is the first function or class to import. In the child, which returns, note it for the parent."""
    if cli.outcome is None:
        cli.outcome = _fork()
    _names.append(name)
    text = ", ".join(dict.fromkeys(_names)).encode()[: mmap.PAGESIZE - 2]
    cli.outcome[2 : 2 + len(text)] = text


def _fork() -> mmap.mmap:
    """Return in the child only, with the memory that it shares with the parent: user code may close a pipe."""
    outcome = mmap.mmap(-1, mmap.PAGESIZE)
    child.end_early()  # only the process that started a worker can wait for it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if a launcher ignored it, there would be no exit status
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPPING, LAST_BLOCKS})
    if pid := os.fork():
        child.alive.add(pid)
        signal.signal(LAST_BLOCKS, lambda number, frame: os.kill(pid, number))
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until waitpid, the number stays that of the child
        signal.signal(LAST_BLOCKS, signal.SIG_IGN)
        child.alive.discard(pid)
        _end_like(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), outcome)
    child.die_with_parent()
    if cli.results:  # what libraries and programs print goes to standard error, as what Python prints
        cli.results = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
    for number in STOPPING:  # they reach both processes, or the parent, which kills its child and prints the message
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    return outcome


def _end_like(status: int, outcome: mmap.mmap) -> NoReturn:
    """Exit with the code that the child has set; if it has set none, raise an error that says how it ended."""
    completed, code = outcome[:2]
    if completed:
        os._exit(code)
    if -status in STOPPING:
        cli.stop(-status, None)
    names = outcome[2:].rstrip(b"\0").decode("utf-8", "ignore")
    raise child.user_death(names.split(", "), status)
