"""The parent's side of a peer's process: threads, memory and crashes of a peer stay its own."""

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
PATIENCE = 3600.0  # seconds for any answer; building takes the longest


class ArmError(Exception):
    """Why an arm has no figures, in one line."""


class Runner:
    """A peer's process in its own environment; its output goes to the log."""

    def __init__(self, python: Path, peer: str, source: Source, log: Path, packages: Path | None = None) -> None:
        """Start it; `packages` is a folder whose packages it imports instead of its environment's."""
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
        """Its answer; ArmError where that is none."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, as will be seen
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        answer = json.loads(self._line())
        if "error" in answer:
            raise ArmError(f"{answer['error']} (all of it in {self.log})")
        return dict(answer)

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if select.select([self.process.stdout], [], [], 0.5)[0] and (line := self.process.stdout.readline()):
                return line
            if self.process.poll() is not None:  # its workers may live on, and hold the pipe open
                raise ArmError(f"its process ended with {self.process.returncode} (see {self.log})")
        raise ArmError(f"no answer within {PATIENCE:.0f} s (see {self.log})")

    def close(self) -> None:
        """End the process, then what it has left."""
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
