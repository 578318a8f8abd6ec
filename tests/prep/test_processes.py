"""How failures of worker processes reach their parent."""

from __future__ import annotations

import errno

import pytest

from decodeonce.prep.processes.child import Child, Parent, run_workers


def main(arguments: list[str]) -> int:
    """Fail each order like a file system that lost its server."""
    with Parent(arguments) as parent:
        parent.receive()
        for path in parent.orders():
            raise ConnectionAbortedError(errno.ECONNABORTED, "Software caused connection abort", path)
    return 0


def test_lost_file_server_is_not_mistaken_for_ended_parent() -> None:
    with pytest.raises(OSError, match="Software caused connection abort") as caught:
        run_workers(__name__, 1, {}, iter(["a.png"]), lambda report: None)
    assert (caught.value.errno, caught.value.filename) == (errno.ECONNABORTED, "a.png")


@pytest.mark.parametrize(
    "module",
    ["decodeonce.prep.building.worker", "decodeonce.prep.export.export", "decodeonce.prep.sources.parquet"],
)
def test_worker_ends_quietly_if_parent_ends_before_first_message(
    module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    child = Child(module)
    child.socket.close()
    assert child.process.wait() == 0
    child.end()
    assert capfd.readouterr().err == ""
