"""Test one point: run a command with a fault, check what it left, run the command again, and compare."""

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

SECONDS = 60  # time limit for a command that takes 50 ms, for very busy machines
PR_SET_CHILD_SUBREAPER = 36
CLEANUP = {"unlink", "rmdir"}  # a store is complete without these


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, or the negative number of a signal, and its standard error."""

    status: int
    stderr: str


class Failure(AssertionError):
    """A point that failed its checks."""


def adopt_orphans() -> None:
    """Make this process the parent of workers whose parent was killed, so that it can wait for them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_in_child(errors: Path, run: Callable[[], int]) -> Ended:
    """Call `run` in a process group of its own, and wait until all of its processes have ended.

    Their standard error goes to the file `errors`. If they hang, kill them and raise Failure.
    """
    pid = os.fork()
    if not pid:
        _child_main(errors, run)
    with suppress(PermissionError):
        os.setpgid(pid, pid)

    def kill(number: int, frame: FrameType | None) -> None:
        os.killpg(pid, signal.SIGKILL)
        raise Failure(f"hangs: still running after {SECONDS} s")

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


def _child_main(errors: Path, run: Callable[[], int]) -> None:
    code = 99
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 2)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_command(target: Target) -> int:
    forking.install()
    sys.argv = ["prep", *target.arguments]
    return _run() or 0


class Crasher:
    """Tests points of one target; `folder` is for the files of the double."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self._folder, self.errors = target, folder, folder / "stderr"
        self.expected: dict[str, bytes] = {}
        self.calls: list[Call] = []

    def prepare(self) -> None:
        """Run the command without faults; its files are the expected result, its calls are the points."""
        double = Double(self._folder)
        self.clear()
        ended = run_in_child(self.errors, lambda: self._run_with_double(double))
        if ended != Ended(0, ""):
            raise Failure(f"{self.target.name}: failed without a fault: {ended}")
        self.expected, self.calls = tree_bytes(self.target.sandbox), double.calls()

    def clear(self) -> None:
        shutil.rmtree(self.target.sandbox, ignore_errors=True)
        self.target.set_up()

    def try_fault(self, fault: Fault) -> Call | None:
        """Test a fault; return the call that it happened to, or None if it did not happen."""
        self.clear()
        call, ended = self._run_with(fault)
        self.check_rerun(complete=ended.status == 0)
        return call

    def try_faults(self, faults: Sequence[Fault]) -> None:
        """Test several faults in a row, each in a run that resumes the one before."""
        self.clear()
        for fault in faults:
            self._run_with(fault)
            checked = run_in_child(self.errors, self._check)
            if checked != Ended(0, ""):
                raise Failure(f"after {fault}: {checked.stderr!r}")
        self.check_rerun()

    def _check(self) -> int:
        self.target.check(self.expected)
        return 0

    def _run_with(self, fault: Fault) -> tuple[Call | None, Ended]:
        double = Double(self._folder, fault)
        ended = run_in_child(self.errors, lambda: self._run_with_double(double))
        if (call := double.happened()) is not None:
            self._check_end(fault.kind, call, ended)
        return call, ended

    def _run_with_double(self, double: Double) -> int:
        double.install()
        return run_command(self.target)

    def _check_end(self, kind: str, call: Call, ended: Ended) -> None:
        if kind in HARMLESS:
            allowed = {0}
        elif kind in KILLS:
            lone = call.by_worker and kind not in ("SIGKILL of all", "SIGKILL of the parent")
            allowed = {0} if lone else {-signal.SIGKILL}  # a worker that dies is replaced
        else:
            allowed = {EXIT_STOPPED if kind.startswith("EIO") else EXIT_FAILED}
            allowed |= {0} if call.label in CLEANUP else set()
            if call.label in READS and self.target.repairs:
                return
        if ended.status not in allowed:
            raise Failure(f"exit status {ended.status}, expected {allowed}; stderr: {ended.stderr!r}")
        self._check_output(kind, ended)

    def _check_output(self, kind: str, ended: Ended) -> None:
        """Check that standard error is empty or one line that names a file and says what to do."""
        if ended.status not in (EXIT_FAILED, EXIT_STOPPED):
            valid = ended.stderr == ""
        else:
            head, advice = ("prep: stopped: ", "run the same command again")
            if ended.status == EXIT_FAILED:
                head, advice = ("prep: error: ", "make room")
            valid = ended.stderr.startswith(head) and advice in ended.stderr and ended.stderr.count("\n") == 1
            valid = valid and (str(self.target.sandbox.parent) in ended.stderr or kind in KILLS)
        if not valid:
            raise Failure(f"exit status {ended.status}, unexpected stderr: {ended.stderr!r}")

    def check_full_disk(self, ended: Ended) -> None:
        """Check a run on a full disk: everything is done, or one line says what to do."""
        if ended.status not in (0, EXIT_FAILED):
            raise Failure(f"{ended}")
        self._check_output("ENOSPC", ended)

    def check_rerun(self, *, complete: bool = False, durable: int = 0) -> None:
        """Check the files, run the command again, and compare the result.

        If `complete`, everything must be there before; at least `durable` units of work must not be lost.
        """
        ended = run_in_child(self.errors, lambda: self._check_and_resume(complete, durable))
        if ended != Ended(0, ""):
            raise Failure(f"rerun: exit status {ended.status}, {ended.stderr!r}")
        if (found := tree_bytes(self.target.sandbox)) != self.expected:
            raise Failure(f"after the rerun {differences(found, self.expected)}")
        if folders := [str(path) for path in self.target.sandbox.rglob(".*") if path.is_dir()]:
            raise Failure(f"after the rerun {folders} are left")

    def _check_and_resume(self, complete: bool, durable: int) -> int:
        self.target.check(self.expected)
        found = tree_bytes(self.target.sandbox)
        missing = differences({name: data for name, data in found.items() if name in self.expected}, self.expected)
        assert not complete or not missing, f"should be complete, but {missing}"
        assert (kept := self.target.durable()) >= durable, f"{kept} blocks are kept, {durable} were done"
        return run_command(self.target)


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> str:
    """Describe how two trees of files differ; "" if they are equal."""
    differ = [f"{name} is missing" for name in expected if name not in found]
    differ += [f"{name} is unexpected" for name in found if name not in expected]
    differ += [f"{name} differs" for name, data in found.items() if data != expected.get(name, data)]
    return "; ".join(sorted(differ))
