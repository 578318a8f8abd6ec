"""Settings of all tests of Loaders.

Every Loader that reads directly does so for half of the rows, however much memory there is. Without an accelerator,
kernels run in Triton's interpreter, which Triton chooses when it is imported.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from decodeonce.loader import readers
from decodeonce.loader.augment import fused

if not torch.accelerator.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def half_of_the_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "kept_share", lambda nbytes, memory: 0.5)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device on which Triton's kernels run."""
    pytest.importorskip("triton", reason="Triton comes only with torch's builds for accelerators")
    monkeypatch.setattr(fused, "_problems", {})
    if torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        assert found is not None
        yield torch.device(found.type, torch.accelerator.current_device_index())
        return
    monkeypatch.setattr(fused, "TYPES", ["cpu"])
    yield torch.device("cpu")


RunForked = Callable[..., tuple[int, str, str]]
# Each line of standard input is a script, the files for its output and errors, and its arguments, as JSON.
FORKS = """
import gc, json, os, sys
import decodeonce.augment, decodeonce.loader.loader

gc.freeze()  # a fork that collects garbage or ends would otherwise copy most of the memory
for line in sys.stdin:
    script, *outputs, arguments = json.loads(line)
    if not (child := os.fork()):
        for fd, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
        sys.argv[1:] = arguments
        exec(script, {"__name__": "__main__"})
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="session")
def run_forked() -> Iterator[RunForked]:
    """Run a script with arguments in a fork of a process that has imported torch, which takes two seconds.

    Returns the exit code, or the negative number of a signal, and the text written to stdout and stderr.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with TemporaryDirectory() as folder, subprocess.Popen([sys.executable, "-c", FORKS], **pipes) as server:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]

        def run(script: str, *arguments: object) -> tuple[int, str, str]:
            assert server.stdin is not None
            assert server.stdout is not None
            print(json.dumps([script, *map(str, outputs), list(map(str, arguments))]), file=server.stdin, flush=True)
            code = int(server.stdout.readline())
            return code, outputs[0].read_text(), outputs[1].read_text()

        yield run
        server.communicate("")
