"""Code that crashes or hangs: the module that test_bounds.py runs in Isolated, and a map that stops its worker."""

import os
import signal

from decodeonce import BuildError, host
from decodeonce.prep.processes.isolated import MEMORY_BYTES, answer_questions
from decodeonce.prep.sources import parquet as tables
from decodeonce.prep.sources.holders import open_holder


def answer(action: str, file: str = "") -> object:
    """Abort, hang, allocate memory, read a table, raise an error, or return `action`."""
    if action == "abort":
        os.abort()
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "hang":
        signal.pause()
    if action == "allocate":
        return len(bytearray(MEMORY_BYTES))
    if action == "read_table":  # with 64 MiB more than the file declares
        tables.MORE_BYTES, host.SPARE_BYTES = 64 << 20, 0
        with open_holder(os.fsencode(file)) as holder:
            return len(tables.Table(holder).read(0, ["image"]))
    if action == "fail":
        raise BuildError("x: damaged")
    print("text on standard output, which must not become part of the answer")
    return action


def main(arguments: list[str]) -> int:
    return answer_questions(arguments, answer)
