"""Workers that die, hang or are asked to stop, with real processes and signals."""

import errno
import os
import signal
import time
from itertools import chain
from pathlib import Path

import pytest

from decodeonce.build import Recipe, finish, make_plan
from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.building import pool as pool_module
from decodeonce.prep.building.journal import Journal, Journals
from decodeonce.prep.building.pool import BlockQueue, UnitQueue, WorkerHandle, WorkerPool, WorkSettings, work
from decodeonce.prep.building.status import read_status
from decodeonce.prep.processes.child import BLOCK_WORKER, Child, Parent, death, wait_for
from decodeonce.sources import open_imagenet, open_webdataset
from decodeonce.store.table import read_rejects
from tests.forms.webdataset import sample, write_tar
from tests.images import encoded, jpeg, make_image, make_tree


@pytest.fixture(scope="module")
def slow_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight small images, and a large progressive JPEG that takes a while to decode."""
    root = make_tree(tmp_path_factory.mktemp("slow"), classes=2, per_class=4)
    large = make_image(500, 500).resize((5000, 5000))
    (root / "train/n00000001/slow.JPEG").write_bytes(encoded(large, progressive=True, quality=95))
    return root


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TICK_SECONDS", 0.02)


def first_message(out: Path, journal: Journal) -> dict[str, object]:
    return {"out": str(out), "journal": str(journal.path), "on_bad": "reject"}


def planned(tree: Path, out: Path) -> tuple[WorkerPool, int]:
    """Make a plan; return a pool for all of its blocks, and the row of the slow image."""
    plan = make_plan(open_imagenet(tree), out, Recipe(height=1024, width=1024))
    (slow,) = [row for row in range(plan.count) if plan.samples.entry(row).name.endswith(b"slow.JPEG")]
    queue = BlockQueue(range(len(plan.blocks)))
    journal = Journal(plan.paths.journals, 0, 1)
    return WorkerPool(first_message(out, journal), 2, queue, journal), slow


def run_and_signal(pool: WorkerPool, row: int, signal_: int) -> int:
    """Run the blocks, and send the signal once to each worker that decodes `row`; return how many received it."""
    signalled: set[int] = set()
    for _ in pool.run():
        for worker in pool.workers:
            if worker.child.heartbeat.decoding == row and worker.child.process.pid not in signalled:
                signalled.add(worker.child.process.pid)
                os.kill(worker.child.process.pid, signal_)
    return len(signalled)


def test_image_that_kills_decoder_twice_is_rejected(slow_tree: Path, tmp_path: Path) -> None:
    pool, slow = planned(slow_tree, tmp_path / "out")
    assert run_and_signal(pool, slow, signal.SIGSEGV) == 2
    manifest = finish(tmp_path / "out", "1")
    (reject,) = [reject for reject in read_rejects(tmp_path / "out/rejects.tsv") if reject.action == "rejected"]
    assert reject.source == "train/n00000001/slow.JPEG"
    assert reject.reason == "the decoder died with exit status -11, 2 times"
    assert (manifest.decoder_crashes, manifest.count) == (1, 8)


def test_worker_killed_from_outside_loses_no_image(slow_tree: Path, tmp_path: Path) -> None:
    pool, slow = planned(slow_tree, tmp_path / "out")
    with pytest.raises(Stopped, match="workers keep dying"):
        run_and_signal(pool, slow, signal.SIGKILL)
    work(tmp_path / "out", WorkSettings(workers=2))
    assert finish(tmp_path / "out", "0").count == 9


def test_image_that_takes_long_is_rejected(slow_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "IMAGE_SECONDS", 0.1)
    make_plan(open_imagenet(slow_tree), tmp_path / "out", Recipe(height=64, width=64))
    work(tmp_path / "out", WorkSettings(workers=1, max_bad="1"))
    (reject,) = read_status(tmp_path / "out").rejects
    assert reject.reason == "the decoder took more than 0.1 s, 2 times"
    assert finish(tmp_path / "out", "1").count == 8


def test_decoder_without_processor_gets_longer(
    slow_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "IMAGE_SECONDS", 0.1)
    pool, slow = planned(slow_tree, tmp_path / "out")
    running = pool.run()
    held = next(worker for _ in running for worker in pool.workers if worker.child.heartbeat.decoding == slow)
    os.kill(held.child.process.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    while time.monotonic() < stopped + 0.5:
        next(running)
    assert held in pool.workers
    monkeypatch.setattr(pool_module, "HANGING_SECONDS", 0.1)
    while held in pool.workers:
        next(running)
    assert held.limit_passed == 0.1
    running.close()


def test_no_block_is_reserved_for_dismissed_worker(tmp_path: Path) -> None:
    """Both blocks share a read unit. A worker that died returns the second one to the queue."""
    journal, queue = Journal(tmp_path, 0, 1), UnitQueue([0], {0: (0, 0), 1: (0, 0)})
    first = first_message(tmp_path, journal)
    pool, dismissed, new = WorkerPool(first, 2, queue, journal), WorkerHandle(first), WorkerHandle(first)
    pool.workers.update((dismissed, new))
    assert [pool.order(dismissed), pool.order(dismissed)] == [{"block": 0, "poison": {}}, None]
    queue.put_back(None, [1])
    assert pool.order(new) == {"block": 1, "poison": {}}
    for worker in pool.workers:
        worker.child.end()


def test_files_in_cwd_hide_no_module(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nt", "json", "numpy", "decodeonce"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    make_plan(open_imagenet(tree), tmp_path / "out", Recipe(height=16, width=16))
    work(tmp_path / "out", WorkSettings(workers=1))
    assert read_status(tmp_path / "out").rows_done == 15


def test_closing_the_loop_ends_all_workers(slow_tree: Path, tmp_path: Path) -> None:
    pool, _ = planned(slow_tree, tmp_path / "out")
    running = pool.run()
    next(running)
    pids = [worker.child.process.pid for worker in pool.workers]
    assert len(pids) == 2
    running.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_that_could_only_read_twice_are_dismissed(tmp_path: Path) -> None:
    images = [sample(f"{number:02d}", jpeg(40, 30, seed=number), cls=0) for number in range(12)]
    write_tar(tmp_path / "src/all.tar.gz", chain(*images), "w:gz")
    plan = make_plan(open_webdataset(str(tmp_path / "src")), tmp_path / "out", Recipe(height=512, width=512))
    assert len(plan.blocks) == 12
    work(tmp_path / "out", WorkSettings(workers=4))
    assert len(list(plan.paths.journals.iterdir())) <= 4
    done = Journals(plan.paths.journals)
    assert sorted(done.lines) == list(range(12))
    assert len({line.path for line in done.lines.values()}) == 1


# ---- How failures of worker processes reach their parent


def main(arguments: list[str]) -> int:
    """Report an order, and fail like a file system that lost its server; an order that is a number is a signal."""
    with Parent(arguments) as parent:
        parent.receive()
        for path in parent.orders():
            parent.report(path)
            if isinstance(path, int):
                os.kill(os.getpid(), path)
            raise ConnectionAbortedError(errno.ECONNABORTED, "Software caused connection abort", path)
    return 0


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (signal.SIGSEGV, BuildError, r"a process crashed \(signal 11, SIGSEGV\); see the messages above"),
        (signal.SIGKILL, Stopped, r"a process was killed \(SIGKILL\); run .* more memory or fewer workers"),
    ],
    ids=["crash", "kill"],
)
def test_process_that_dies_is_an_error(number: int, error: type[Exception], text: str) -> None:
    child = Child(__name__)
    child.send({})
    child.send(number)
    with pytest.raises(error, match=text):
        raise death("a process", child.process.wait(), "see the messages above")
    child.end()


def test_reports_before_a_failure_are_received() -> None:
    """The failure is that of a file system that lost its server, not that of an ended parent."""
    child = Child(__name__)
    child.send({})
    child.send("a.png")
    child.process.wait()  # all messages arrive at once
    messages = child.receive()
    assert messages is not None
    assert [next(messages), next(messages)] == [{"ready": True}, {"report": "a.png"}]
    with pytest.raises(OSError, match="Software caused connection abort") as caught:
        next(messages)
    assert (caught.value.errno, caught.value.filename) == (errno.ECONNABORTED, "a.png")
    child.end()


def test_process_is_started_by_a_python_that_was_compiled_for_an_older_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    child = Child(__name__)
    child.process.kill()
    assert wait_for([child]) == [child]
    assert (child.receive(), child.exit_status()) == (None, -signal.SIGKILL)
    child.end()


def test_worker_ends_quietly_if_parent_ends_before_a_message(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child(BLOCK_WORKER)
    child.socket.close()
    assert child.process.wait() == 0
    child.end()
    assert capfd.readouterr().err == ""
