"""Run a peer in a process of its own, so that its threads, memory and crashes do not affect others."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.peers.harness.peer import FOLDER, Source

ROOT = FOLDER.parent.parent
TIMEOUT = 3600.0  # seconds for any answer; building takes the longest


class ArmError(Exception):
    """An arm failed; the message is one line."""


class Runner:
    """A process in a peer's environment. Its output goes to the log."""

    def __init__(self, python: Path, peer: str, source: Source, log: Path, packages: Path | None = None) -> None:
        """Start the process. It imports packages in the folder `packages` instead of those in its environment."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        command = [str(python), "-m", "bench.peers.harness.serve", peer, source.to_json()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        if packages:
            environment["PYTHONPATH"] = str(packages)
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            ArmError: If the process reports an error, ends or does not answer in time.
        """
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; _line reports that
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        answer = json.loads(self._line())
        if "error" in answer:
            raise ArmError(f"{answer['error']} (see {self.log})")
        return dict(answer)

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        deadline, answers = time.monotonic() + TIMEOUT, select.poll()  # select.select refuses descriptors from 1024 on
        answers.register(self.process.stdout, select.POLLIN)
        while time.monotonic() < deadline:
            if answers.poll(500) and (line := self.process.stdout.readline()):
                return line
            if self.process.poll() is not None:  # its workers may still run and keep the pipe open
                raise ArmError(f"its process ended with exit code {self.process.returncode} (see {self.log})")
        raise ArmError(f"no answer within {TIMEOUT:.0f} s (see {self.log})")

    def close(self) -> None:
        """End the process, and kill processes that it left behind."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
