"""`python -m tests.together.at_once TIMES`: call the library on one OUT from several processes at the same moment.

Prints, as JSON, the exceptions of the calls and the files that differ from those of a single process.
"""

import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from decodeonce.build import WorkSettings, finish, make_plan, plan_unless_built, work
from decodeonce.prep.sources.imagenet import open_imagenet
from tests.images import make_tree, tree_bytes
from tests.together.processes import RECIPE

Call = Callable[[], object]
ALLOWANCE = "2"


def at_once(*calls: Call) -> list[str]:
    """Make each call in its own process, all at the same moment, and return the exceptions that they raised."""
    forking = multiprocessing.get_context("fork")
    barrier, errors = forking.Barrier(len(calls)), forking.SimpleQueue()

    def run(call: Call) -> None:
        barrier.wait()
        try:
            call()
        except BaseException as error:
            errors.put(f"{type(error).__name__}: {error}")

    processes = [forking.Process(target=run, args=(call,)) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [errors.get() for _ in iter(errors.empty, True)]


def main() -> int:
    """Repeat each combination of calls."""
    times = int(sys.argv[1])
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        base = Path(folder)
        tree = make_tree(base / "src")
        for number in (1, 2):  # rejects, so that rows move and shards are cut
            (tree / f"train/n00000000/n00000000_{number}.JPEG").write_bytes(b"not an image")
        source = open_imagenet(tree)
        make_plan(source, base / "planned", RECIPE)
        shutil.copytree(base / "planned", base / "worked")
        work(base / "worked", WorkSettings(max_bad="2"))
        shutil.copytree(base / "worked", base / "finished")
        finish(base / "finished", ALLOWANCE)
        out = base / "out"
        finish_, plan = partial(finish, out, ALLOWANCE), partial(plan_unless_built, source, out, RECIPE)
        problems = [
            *_problems("finish and finish", times, base, "worked", "finished", [finish_, finish_, finish_]),
            *_problems("finish and plan", times // 4, base, "worked", "finished", [finish_, plan, plan]),
            *_problems("plan and plan", times // 4, base, None, "planned", [plan, plan, plan]),
        ]
    print(json.dumps(problems))
    return 0


def _problems(kind: str, times: int, base: Path, start: str | None, end: str, calls: list[Call]) -> list[str]:
    expected, problems = _files(base / end), []
    for _ in range(times):
        if start is not None:
            shutil.copytree(base / start, base / "out")
        problems += [f"{kind}: {error}" for error in at_once(*calls)]
        found = _files(base / "out")
        different = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        problems += [f"{kind}: {name} differs" for name in different]
        shutil.rmtree(base / "out")
    return problems


def _files(root: Path) -> dict[str, bytes]:
    """Return the files of a build, without the name that each plan gives to its folder."""
    found = {re.sub(r"plan-[0-9a-f]{8}/", "plan/", name): data for name, data in tree_bytes(root).items()}
    if plan := found.get(".build/plan.json"):
        facts = json.loads(plan)
        found[".build/plan.json"] = json.dumps({**facts, "folder": "plan", "digest": ""}).encode()
    return found


if __name__ == "__main__":
    sys.exit(main())
