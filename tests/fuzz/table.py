"""samples.tsv and rejects.tsv, with both readers of samples.tsv."""

from collections.abc import Callable, Iterator
from pathlib import Path

from decodeonce.errors import StoreError
from decodeonce.store.table import Sample, Samples, escape, read_rejects, unescape
from tests.fuzz import scratch

GOLDEN = Path(__file__).parent.parent / "store" / "golden" / "npy"
FILE = scratch("table") / "lines.tsv"


def seeds() -> Iterator[bytes]:
    """Yield tables of a store, and one with unusual names."""
    for name in ("samples.tsv", "rejects.tsv"):
        yield (GOLDEN / name).read_bytes()
    yield b"row\n0\t1\ta\\tb\tn\\xff\\\\\t3\t4\t0,0,1,1\tff\nreject\tbroken\trejected\n"


def TestOneInput(data: bytes) -> None:
    """Reading all lines and reading some by number give the same samples."""
    FILE.write_bytes(data)
    count = max(0, data.count(b"\n") - 1)
    samples = _try_to(lambda: list(Samples(FILE, count)))
    by_number = _try_to(lambda: [Samples(FILE, count)[row] for row in range(min(count, 8))])
    if samples is not None:
        assert samples[:8] == by_number, (samples, by_number)
    try:
        for reject in read_rejects(FILE):
            assert unescape(escape(reject.source)) == reject.source
    except StoreError:
        pass


def _try_to(read: Callable[[], list[Sample]]) -> list[Sample] | None:
    try:
        return read()
    except StoreError:
        return None
