"""Run training scripts in forked processes, and kill some with SIGKILL: `python -m tests.docs.fork_server`.

Importing torch takes seconds, so this process imports it once and forks. It starts no threads. Each line of its
standard input is a run: {"script", "folder", "ranks", "port", "step", "line"} as JSON. The script runs with that many
ranks, each of which appends a line per batch to rows<rank>.jsonl. The answer is a line with the ranks' exit statuses.

The last rank is killed in step `step`, counted from 1, before it runs the line `line` of that step, counted from 0. The
other ranks are then killed, too. With step 0, no rank is killed.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import torch._dynamo  # otherwise each child imports it when it creates an optimizer
import torch.distributed

from decodeonce import Batch, Loader


def main() -> None:
    for line in sys.stdin:
        run = json.loads(line)
        code = compile(Path(run["script"]).read_text(), run["script"], "exec")
        ranks = {fork(run, rank, code): rank for rank in range(run["ranks"])}
        statuses = [0] * len(ranks)
        while ranks:
            pid, status = os.wait()
            statuses[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
            if status:
                for other in ranks:
                    os.kill(other, signal.SIGKILL)
        print(json.dumps(statuses), flush=True)


def fork(run: dict[str, Any], rank: int, code: CodeType) -> int:
    """Run the script in a child process, and return its process ID."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.chdir(run["folder"])
        output = os.open(f"rank{rank}.out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": run["ranks"], "MASTER_PORT": run["port"]}
        os.environ |= {name: str(value) for name, value in variables.items()} | {"MASTER_ADDR": "127.0.0.1"}
        is_killed = run["step"] and rank == run["ranks"] - 1
        execute(code, Path(f"rows{rank}.jsonl"), (run["step"], run["line"]) if is_killed else None)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def execute(code: CodeType, log: Path, kill_at: tuple[int, int] | None) -> None:
    """Run the script, log the rows of each batch, and kill this process at the step and line of `kill_at`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    batches: list[Batch] = []
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != code.co_filename:
            return None
        if event == "line" and "batch" in names:
            batch, lines = names["batch"], lines + 1
            if not batches or batch is not batches[-1]:
                batches.append(batch)
                lines = 0
                state = names["loader"].state_dict()
                record = {"rows": batch.rows[: batch.valid].tolist(), "epoch": batch.epoch}
                with log.open("a") as file:
                    file.write(json.dumps(record | {"state": [state["epoch"], state["rows_consumed"]]}) + "\n")
            if kill_at and (len(batches), lines) >= kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    exec(code, names)
    sys.settrace(None)
    assert isinstance(names["loader"], Loader)
    names["loader"].close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
