"""Run a training script in forked processes, some of which die of SIGKILL: `python -m tests.docs.fork_server SCRIPT`.

Importing torch takes seconds, so this process imports it once and forks. It starts no thread itself. Each line of its
standard input is an Order as JSON; the answer is a line with the exit statuses of all ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import torch._dynamo  # optimizers import it when they are made
import torch.distributed

from decodeonce import Batch, Loader


@dataclass(frozen=True)
class Order:
    """One run of the script in `folder`, with `ranks` ranks, of which the last is killed.

    It dies in its `step`-th step, counted from 1, before the `line`-th line that it runs there, counted from 0; step 0
    lets it live. As soon as it is dead the others are killed. Each rank adds a line to rows<rank>.jsonl for each batch.
    """

    folder: str
    ranks: int = 1
    port: int = 0
    step: int = 0
    line: int = 0


def main(script: Path) -> None:
    code = compile(script.read_text(), str(script), "exec")
    for line in sys.stdin:
        order = Order(**json.loads(line))
        started = {fork(order, rank, code): rank for rank in range(order.ranks)}
        statuses = [0] * order.ranks
        while started:
            pid, status = os.wait()
            statuses[started.pop(pid)] = os.waitstatus_to_exitcode(status)
            if status:
                for other in started:
                    os.kill(other, signal.SIGKILL)
        print(json.dumps(statuses), flush=True)


def fork(order: Order, rank: int, code: CodeType) -> int:
    """Run the script in a child; returns the child's number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.chdir(order.folder)
        output = os.open(f"rank{rank}.out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        facts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": order.ranks, "MASTER_PORT": order.port}
        os.environ |= {name: str(value) for name, value in facts.items()} | {"MASTER_ADDR": "127.0.0.1"}
        run(
            code,
            Path(f"rows{rank}.jsonl"),
            (order.step, order.line) if order.step and rank == order.ranks - 1 else None,
        )
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def run(code: CodeType, log: Path, death: tuple[int, int] | None) -> None:
    """Run the script, log the rows of each batch, and die at `death`, a step and a line of it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    seen: list[Batch] = []
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != code.co_filename:
            return None
        if event == "line" and "batch" in names:
            batch, lines = names["batch"], lines + 1
            if not seen or batch is not seen[-1]:
                seen.append(batch)
                lines = 0
                state = names["loader"].state_dict()
                said = {"rows": batch.rows[: batch.valid].tolist(), "epoch": batch.epoch}
                with log.open("a") as file:
                    file.write(json.dumps(said | {"state": [state["epoch"], state["rows_consumed"]]}) + "\n")
            if death and (len(seen), lines) >= death:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    exec(code, names)
    sys.settrace(None)
    assert isinstance(names["loader"], Loader)
    names["loader"].close()


def order_line(order: Order) -> str:
    """The order as main() reads it."""
    return json.dumps(asdict(order)) + "\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
