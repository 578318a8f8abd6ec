"""`python -m tests.together.at_once TIMES`: library calls on one OUT in several processes at the same moment.

Prints, as JSON, the calls that raised and the stores that came out otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from decodeonce.prep.build import Work, finish, make_plan, plan_unless_built, work
from decodeonce.prep.build.max_bad import Allowance
from decodeonce.prep.sources import open_imagenet
from tests.images import make_tree, tree_bytes
from tests.together.processes import RECIPE

Call = Callable[[], object]
ALLOWANCE = Allowance.parse("2")


def at_once(*calls: Call) -> list[str]:
    """Make each call in a process of its own, all of which begin together; returns what they raised."""
    ready, go = os.pipe()
    said, say = os.pipe()
    for call in calls:
        if not os.fork():
            try:
                os.close(go)
                os.read(ready, 1)
                call()
            except BaseException as error:
                os.write(say, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(0)
    for fd in (ready, go, say):  # when the last one lets go of `go`, all of them begin
        os.close(fd)
    for _ in calls:
        os.wait()
    with open(said) as raised:
        return raised.read().splitlines()


def main() -> int:
    """Do each kind so many times."""
    times = int(sys.argv[1])
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        base = Path(folder)
        tree = make_tree(base / "src")
        for number in (1, 2):  # rejects, so that rows move and shards are cut
            (tree / f"train/n00000000/n00000000_{number}.JPEG").write_bytes(b"no picture")
        source = open_imagenet(tree)
        make_plan(source, base / "planned", RECIPE)
        shutil.copytree(base / "planned", base / "worked")
        work(base / "worked", Work(max_bad="2"))
        shutil.copytree(base / "worked", base / "finished")
        finish(base / "finished", ALLOWANCE)
        out = base / "out"
        finish_, plan = partial(finish, out, ALLOWANCE), partial(plan_unless_built, source, out, RECIPE)
        wrong = [
            *_tried("finish and finish", times, base, "worked", "finished", [finish_, finish_, finish_]),
            *_tried("finish and plan", times // 4, base, "worked", "finished", [finish_, plan, plan]),
            *_tried("plan and plan", times // 4, base, None, "planned", [plan, plan, plan]),
        ]
    print(json.dumps(wrong))
    return 0


def _tried(kind: str, times: int, base: Path, start: str | None, end: str, calls: list[Call]) -> list[str]:
    expected, wrong = tree_bytes(base / end), []
    for _ in range(times):
        if start is not None:
            shutil.copytree(base / start, base / "out")
        wrong += [f"{kind}: {raised}" for raised in at_once(*calls)]
        found = tree_bytes(base / "out")
        different = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        wrong += [f"{kind}: {name} came out otherwise" for name in different]
        shutil.rmtree(base / "out")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
