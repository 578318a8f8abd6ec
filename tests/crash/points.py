"""One point: a command in which something goes wrong, a look at what it left, the command again, and a comparison."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from decodeonce.cli import EXIT_FAILED, EXIT_STOPPED, _run
from tests.crash import forking
from tests.crash.double import HARMLESS, KILLS, READS, Call, Double, Fault
from tests.crash.targets import Target
from tests.images import tree_bytes

SECONDS = 60  # for a command of 50 ms, on a very busy machine
PR_SET_CHILD_SUBREAPER = 36
CLEARING_UP = {"unlink", "rmdir"}  # a store is whole without these


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, or the negative number of a signal; and what it said."""

    status: int
    told: str


class Wrong(AssertionError):
    """A point at which something is not as it should be."""


def adopt_orphans() -> None:
    """Have workers whose parent was killed become children of this process, so that it can wait for them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def in_a_child(errors: Path, life: Callable[[], int]) -> Ended:
    """Run `life` in a process group of its own until all of that have ended; what hangs is killed, and Wrong.

    `errors` is a file for what they say on standard error.
    """
    pid = os.fork()
    if not pid:
        _live(errors, life)
    with suppress(PermissionError):
        os.setpgid(pid, pid)

    def kill(number: int, frame: FrameType | None) -> None:
        os.killpg(pid, signal.SIGKILL)
        raise Wrong(f"hangs: not at its end after {SECONDS} s")

    signal.signal(signal.SIGALRM, kill)
    signal.alarm(SECONDS)
    status = 0
    try:
        while True:
            ended, code = os.waitpid(-pid, 0)
            status = os.waitstatus_to_exitcode(code) if ended == pid else status
    except ChildProcessError:
        return Ended(status, errors.read_text(errors="backslashreplace"))
    finally:
        signal.alarm(0)


def _live(errors: Path, life: Callable[[], int]) -> None:
    code = 99
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 2)
        code = life()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_command(target: Target) -> int:
    """The exit code of the command line, in this process."""
    forking.install()
    sys.argv = ["prep", *target.arguments]
    return _run() or 0


class Crasher:
    """Tries points of one target; `folder` is its own, for files of the double."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self._folder, self.errors = target, folder, folder / "stderr"
        self.expected: dict[str, bytes] = {}
        self.calls: list[Call] = []

    def prepare(self) -> None:
        """Run the command undisturbed: what it leaves is what every other must leave, its calls are the points."""
        double = Double(self._folder)
        self.clear()
        ended = in_a_child(self.errors, lambda: self._disturbed(double))
        if ended != Ended(0, ""):
            raise Wrong(f"{self.target.name}: undisturbed, and yet {ended}")
        self.expected, self.calls = tree_bytes(self.target.world), double.calls()

    def clear(self) -> None:
        """A world in which nothing was run."""
        shutil.rmtree(self.target.world, ignore_errors=True)
        self.target.begin()

    def try_fault(self, fault: Fault) -> Call | None:
        """The call that the fault happened to, None where it did not come to it; Wrong says what is wrong."""
        self.clear()
        call, ended = self._run_with(fault)
        self.check_rerun(whole=ended.status == 0)
        return call

    def try_faults(self, faults: Sequence[Fault]) -> None:
        """The same of several in a row, each in a run that goes on where the one before it ended."""
        self.clear()
        for fault in faults:
            self._run_with(fault)
            looked = in_a_child(self.errors, self._look)
            if looked != Ended(0, ""):
                raise Wrong(f"after {fault}: {looked.told!r}")
        self.check_rerun()

    def _look(self) -> int:
        self.target.look(self.expected)
        return 0

    def _run_with(self, fault: Fault) -> tuple[Call | None, Ended]:
        double = Double(self._folder, fault)
        ended = in_a_child(self.errors, lambda: self._disturbed(double))
        if (call := double.happened()) is not None:
            self._check_end(fault.kind, call, ended)
        return call, ended

    def _disturbed(self, double: Double) -> int:
        double.install()
        return run_command(self.target)

    def _check_end(self, kind: str, call: Call, ended: Ended) -> None:
        survives = not call.by_worker or self.target.replaces_workers
        if kind in HARMLESS:
            allowed = {0}
        elif kind in KILLS:
            lone = call.by_worker and kind not in ("SIGKILL of all", "SIGKILL of the parent")
            allowed = {0 if survives else EXIT_STOPPED} if lone else {-signal.SIGKILL}
        else:
            allowed = {EXIT_STOPPED if kind.startswith("EIO") else EXIT_FAILED}
            allowed |= {0} if call.label in CLEARING_UP else set()
            if call.label in READS and self.target.repairs:
                return
        if self.is_refusal(ended):  # an earlier run had come to its end
            return
        if ended.status not in allowed:
            raise Wrong(f"exit status {ended.status}, expected {allowed}; it said {ended.told!r}")
        self._check_told(kind, ended)

    def _check_told(self, kind: str, ended: Ended) -> None:
        """A line that says which file, and what to do; or nothing."""
        if ended.status not in (EXIT_FAILED, EXIT_STOPPED):
            told = ended.told == ""
        else:
            head, advice = ("prep: stopped: ", "run the same command again")
            if ended.status == EXIT_FAILED:
                head, advice = ("prep: error: ", "make room")
            told = ended.told.startswith(head) and advice in ended.told and ended.told.count("\n") == 1
            told = told and (str(self.target.world.parent) in ended.told or kind in KILLS)
        if not told:
            raise Wrong(f"exit status {ended.status}, and it said {ended.told!r}")

    def check_told_of_full(self, ended: Ended) -> None:
        """On a full disk: all is done, or a line says what to do."""
        if ended.status not in (0, EXIT_FAILED):
            raise Wrong(f"{ended}")
        self._check_told("ENOSPC", ended)

    def check_rerun(self, *, whole: bool = False, durable: int = 0) -> None:
        """Look, run the command again where anything is left to do, and compare; `whole`: it must be whole by now.

        durable: units of work that must not be lost.
        """
        ended = in_a_child(self.errors, lambda: self._look_and_go_on(whole, durable))
        if ended != Ended(0, "") and not self.is_refusal(ended):
            raise Wrong(f"then: exit status {ended.status}, {ended.told!r}")
        if (found := tree_bytes(self.target.world)) != self.expected:
            raise Wrong(f"in the end {differences(found, self.expected)}")
        if folders := [str(path) for path in self.target.world.rglob(".*") if path.is_dir()]:
            raise Wrong(f"in the end {folders} are left")

    def _look_and_go_on(self, whole: bool, durable: int) -> int:
        self.target.look(self.expected)
        found = tree_bytes(self.target.world)
        missing = differences({name: data for name, data in found.items() if name in self.expected}, self.expected)
        assert not whole or not missing, f"it should be whole, and {missing}"
        assert (kept := self.target.durable()) >= durable, f"{kept} blocks are kept, {durable} were done"
        return run_command(self.target)

    def is_refusal(self, ended: Ended) -> bool:
        """Whether the command found all done before."""
        refusal = self.target.refusal
        return bool(refusal) and ended.status == EXIT_FAILED and refusal in ended.told and ended.told.count("\n") == 1


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> str:
    """What distinguishes two trees of files, "" for nothing."""
    differ = [f"{name} is missing" for name in expected if name not in found]
    differ += [f"{name} is too much" for name in found if name not in expected]
    differ += [f"{name} differs" for name, data in found.items() if data != expected.get(name, data)]
    return "; ".join(sorted(differ))
