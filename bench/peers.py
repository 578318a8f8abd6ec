"""How fast other loaders deliver the same rows, beside our Loader, in one run.

    python3 -m tools.setup_peers [--apt]
    build/peers-venv/bin/python bench/peers.py STORE [--rows 3000] [--repeats 5] [--batch-size 256] [--json]

Each arm has a process of its own. It converts the store's first rows into the arm's format, kept in the scratch folder,
reads all of its files once, so that they are warm, and takes one epoch, whose rows must be the store's, each as often
as it should be; the time to its first batch is told. Then every repeat times an epoch of each arm in turn, its start
included, while the others sleep. Rows are uint8 pictures in shuffled batches of CPU tensors; everyone has two workers
or threads. Rates are medians, ratios to the Loader are taken repeat by repeat. Another peer is a line in ARMS, with a
function that writes and one that reads.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import re
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, Dataset

from decodeonce import Loader, Store, open_store

WORKERS = 2
LONG = 8  # epochs in a long one
PATIENCE = 600  # seconds for any answer of an arm's process; converting takes the longest
SCRATCH = Path(__file__).resolve().parent.parent / "build" / "peers"
SPAWN = multiprocessing.get_context("spawn")

# A part of streaming that nothing here needs imports torchvision, whose wheels do not fit a CPU build of torch.
sys.modules.setdefault("streaming.vision", ModuleType("streaming.vision"))


class Source(NamedTuple):
    """The rows that are loaded: the first `count` of a store, a whole number of batches for each of two workers."""

    path: Path
    count: int
    batch_size: int

    @property
    def store(self) -> Store:
        return open_store(self.path)

    def pairs(self) -> Iterator[tuple[np.ndarray, int]]:
        """Each row's pixels and label."""
        store = self.store
        for row in range(self.count):
            yield np.array(store.images[row]), int(store.labels[row])


Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
Write = Callable[[Source, Path], None]
Read = Callable[[Source, Path], Callable[[], Batches]]


class Arm(NamedTuple):
    """`write` makes the files in an empty folder; `read` opens them and returns what begins an epoch."""

    module: str
    write: Write
    read: Read
    epochs: int = 1
    beside: str = "Loader"


def write_nothing(source: Source, folder: Path) -> None:
    """The Loader reads the store."""


def read_loader(source: Source, folder: Path, epochs: int = 1) -> Callable[[], Batches]:
    """Our Loader over the whole store, several epochs of it as one."""
    loader = Loader(source.path, batch_size=source.batch_size, shuffle="full", threads=WORKERS)
    return lambda: (pair for _ in range(epochs) for pair in loader)


def write_ffcv(source: Source, folder: Path) -> None:
    """A .beton of raw pictures."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    DatasetWriter(str(folder / "rows.beton"), fields, num_workers=WORKERS).from_indexed_dataset(list(source.pairs()))


def read_ffcv(source: Source, folder: Path, epochs: int = 1) -> Callable[[], Batches]:
    """FFCV's Loader; several epochs as one by giving it every index so many times, since it makes its ring every epoch.

    RGBImageField, because its decoder copies in parallel and NDArrayDecoder does not.
    """
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.loader import Loader as FfcvLoader
    from ffcv.loader import OrderOption
    from ffcv.transforms import ToTensor

    loader = FfcvLoader(
        str(folder / "rows.beton"),
        source.batch_size,
        num_workers=WORKERS,
        os_cache=True,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(source.count, dtype="uint64"), epochs),
        pipelines={"image": [SimpleRGBImageDecoder(), ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )
    return lambda: loader


def write_npy(source: Source, folder: Path) -> None:
    """One array of pixels and one of labels."""
    np.save(folder / "images.npy", source.store.images[: source.count])
    np.save(folder / "labels.npy", source.store.labels[: source.count])


class MappedRows(Dataset[tuple[torch.Tensor, int]]):
    """The usual map-style dataset over np.memmap."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.images: np.ndarray | None = None

    def __len__(self) -> int:
        return self.count

    def open(self) -> tuple[np.ndarray, np.ndarray]:
        """Pixels and labels, mapped in the worker."""
        if self.images is None:
            self.images = np.load(self.folder / "images.npy", mmap_mode="r")
            self.labels = np.load(self.folder / "labels.npy")
        return self.images, self.labels

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        images, labels = self.open()
        return torch.from_numpy(images[index].copy()), int(labels[index])


class MappedBatches(MappedRows):
    """The same, but a batch is gathered at once."""

    def __getitems__(self, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = self.open()
        return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])


def as_it_is(batch: Any) -> Any:
    """Collates what is a batch already."""
    return batch


def torch_epochs(dataset: Dataset[Any], batch_size: int, **options: Any) -> Callable[[], Batches]:
    """Shuffled epochs of torch's DataLoader, whose workers stay."""
    options = {"shuffle": True, "num_workers": WORKERS, "persistent_workers": True, **options}
    loader = DataLoader(dataset, batch_size, **options)
    return lambda: loader


def read_by_sample(source: Source, folder: Path) -> Callable[[], Batches]:
    """torch's DataLoader over np.memmap, a sample at a time."""
    return torch_epochs(MappedRows(folder, source.count), source.batch_size)


def read_by_batch(source: Source, folder: Path) -> Callable[[], Batches]:
    """torch's DataLoader over np.memmap, a batch at a time."""
    return torch_epochs(MappedBatches(folder, source.count), source.batch_size, collate_fn=as_it_is)


def write_hdf5(source: Source, folder: Path) -> None:
    """Two contiguous datasets."""
    import h5py

    with h5py.File(folder / "rows.h5", "w") as file:
        file["images"] = source.store.images[: source.count]
        file["labels"] = source.store.labels[: source.count]


class Hdf5Rows(Dataset[tuple[torch.Tensor, int]]):
    """The usual map-style dataset over h5py, opened in the worker."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        self.file: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            import h5py

            self.file = h5py.File(self.path, "r")
            self.images, self.labels = self.file["images"], self.file["labels"][:]
        return torch.from_numpy(self.images[index]), int(self.labels[index])


def read_hdf5(source: Source, folder: Path) -> Callable[[], Batches]:
    """h5py in torch's DataLoader, a sample at a time."""
    return torch_epochs(Hdf5Rows(folder / "rows.h5", source.count), source.batch_size)


def write_webdataset(source: Source, folder: Path) -> None:
    """Tar files of a batch each, pixels as raw bytes."""
    import webdataset

    with webdataset.ShardWriter(f"{folder}/%05d.tar", maxcount=source.batch_size, verbose=0) as tars:
        for row, (pixels, label) in enumerate(source.pairs()):
            tars.write({"__key__": f"{row:08d}", "rgb": pixels.tobytes(), "cls": label})


def read_webdataset(source: Source, folder: Path) -> Callable[[], Batches]:
    """Tar files shuffled, then samples within a buffer, batches made in the workers, as its documentation does it."""
    import webdataset

    shape = source.store.manifest.shape
    tars = sorted(map(str, folder.glob("*.tar")))
    dataset = (
        webdataset.WebDataset(tars, shardshuffle=len(tars))
        .shuffle(1000)
        .map(lambda sample: (np.frombuffer(sample["rgb"], np.uint8).reshape(shape), int(sample["cls"])))
        .batched(source.batch_size)
    )
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def write_mds(source: Source, folder: Path) -> None:
    """MDS shards of its default size, the array encoded with its type and shape given once."""
    from streaming import MDSWriter

    shape = ",".join(map(str, source.store.manifest.shape))
    with MDSWriter(out=str(folder), columns={"image": f"ndarray:uint8:{shape}", "label": "int"}) as shards:
        for pixels, label in source.pairs():
            shards.write({"image": pixels, "label": label})


def read_mds(source: Source, folder: Path) -> Callable[[], Batches]:
    """StreamingDataset without a remote, in a DataLoader."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # of a run that was killed
    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=source.batch_size)
    begin = torch_epochs(dataset, source.batch_size, shuffle=None)
    return lambda: ((batch["image"], batch["label"]) for batch in begin())


def litdata_item(path: Path, row: int) -> tuple[torch.Tensor, int]:
    """What litdata stores of a row."""
    store = open_store(path)
    return torch.from_numpy(np.array(store.images[row])), int(store.labels[row])


def write_litdata(source: Source, folder: Path) -> None:
    """Chunks of 64 MB, as its documentation has them."""
    from litdata import optimize

    rows = list(range(source.count))
    optimize(
        partial(litdata_item, source.path), rows, str(folder), chunk_bytes="64MB", num_workers=WORKERS, verbose=False
    )


def read_litdata(source: Source, folder: Path) -> Callable[[], Batches]:
    """StreamingDataset of a local folder in its StreamingDataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder), shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=source.batch_size, num_workers=WORKERS, persistent_workers=True)
    return lambda: loader


def read_spdl(source: Source, folder: Path) -> Callable[[], Batches]:
    """SPDL's pipeline: batches of np.memmap's rows gathered in threads; it is built anew every epoch."""
    from spdl.pipeline import PipelineBuilder

    images, labels = MappedRows(folder, source.count).open()
    random = np.random.default_rng(0)

    def gather(rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(images[rows]), torch.from_numpy(labels[rows])

    def epoch() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = random.permutation(source.count).reshape(-1, source.batch_size)
        builder = PipelineBuilder().add_source(order).pipe(gather, concurrency=WORKERS).add_sink(3)
        with (pipeline := builder.build(num_threads=WORKERS)).auto_stop():
            yield from pipeline

    return epoch


ARMS = {
    "Loader": Arm("decodeonce", write_nothing, read_loader),
    "FFCV": Arm("ffcv", write_ffcv, read_ffcv),
    "DataLoader, memmap by sample": Arm("torch", write_npy, read_by_sample),
    "DataLoader, memmap by batch": Arm("torch", write_npy, read_by_batch),
    "DataLoader, h5py by sample": Arm("h5py", write_hdf5, read_hdf5),
    "WebDataset": Arm("webdataset", write_webdataset, read_webdataset),
    "MosaicML Streaming": Arm("streaming", write_mds, read_mds),
    "LitData": Arm("litdata", write_litdata, read_litdata),
    "SPDL, memmap by batch": Arm("spdl.pipeline", write_npy, read_spdl),
    f"Loader, {LONG} epochs": Arm("decodeonce", write_nothing, partial(read_loader, epochs=LONG), LONG),
    f"FFCV, {LONG} epochs in one": Arm(
        "ffcv", write_ffcv, partial(read_ffcv, epochs=LONG), LONG, f"Loader, {LONG} epochs"
    ),
}


class ArmError(Exception):
    """Why an arm has no numbers, in one line."""


def converted(arm: Arm, source: Source, scratch: Path) -> Path:
    """The folder with the arm's files, made unless an earlier run left it whole."""
    digest = xxhash.xxh3_64_hexdigest((source.path / "store.json").read_bytes())
    folder = scratch / digest / f"{arm.write.__name__.removeprefix('write_')}-{source.count}-{source.batch_size}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        arm.write(source, part)
        part.rename(folder)
    return folder


def warm(folder: Path) -> None:
    """Read every file of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def check(batches: Batches, source: Source, epochs: int) -> None:
    """Take an epoch; raise ArmError unless its pixels and labels are the store's, each as often as it should be."""
    store = source.store
    kind = (torch.uint8, *store.manifest.shape)
    delivered: Counter[tuple[int, int]] = Counter()
    for images, labels in batches:
        if (images.dtype, *images.shape[1:]) != kind or not images.is_contiguous():
            raise ArmError(f"batches of {images.dtype} {tuple(images.shape)}, expected {kind} and contiguous")
        sums = map(xxhash.xxh3_64_intdigest, images.numpy())
        delivered.update(zip(labels.flatten().tolist(), sums, strict=True))
    allowed = Counter(zip(store.labels.tolist(), store.checksums.tolist(), strict=True))
    wrong = delivered - Counter({row: times * epochs for row, times in allowed.items()})
    if wrong or delivered.total() < source.count * epochs:
        raise ArmError(
            f"{delivered.total()} rows in {epochs} epochs of {source.count}, {wrong.total()} wrong or too often"
        )


def drain(batches: Batches) -> int:
    """Take every batch and drop it; the number of rows."""
    return sum(len(images) for images, _ in batches)


def first_then_rest(batches: Batches, started: float, seconds: list[float]) -> Batches:
    """The batches; how long it took to the first one is put into `seconds`."""
    for batch in batches:
        if not seconds:
            seconds.append(time.perf_counter() - started)
        yield batch


def run_arm(arm: Arm, source: Source, scratch: Path, pipe: Connection) -> None:
    """Convert, open, check, tell the seconds to the first batch; then an epoch's rows and seconds whenever asked."""
    importlib.import_module(arm.module)
    folder = converted(arm, source, scratch)
    warm(folder)
    seconds: list[float] = []
    started = time.perf_counter()
    begin = arm.read(source, folder)
    check(first_then_rest(begin(), started, seconds), source, arm.epochs)
    pipe.send(seconds[0])
    while pipe.recv():
        started = time.perf_counter()
        rows = drain(begin())
        pipe.send((rows, time.perf_counter() - started))


def serve(name: str, source: Source, scratch: Path, log: Path, pipe: Connection) -> None:
    """An arm's process: what it prints goes into its log, what stops it into one line for the parent."""
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # Not spawn, which this process has from its parent: peers' workers start sooner so, and as their users' do.
    multiprocessing.set_start_method("fork", force=True)
    try:
        run_arm(ARMS[name], source, scratch, pipe)
    except BaseException as error:  # whatever it is, the parent waits for an answer
        first_line = str(error).strip().partition("\n")[0]
        pipe.send(first_line if isinstance(error, ArmError) else f"{type(error).__name__}: {first_line}")
        raise


class Runner:
    """An arm's process: threads, memory and crashes of a peer stay its own."""

    def __init__(self, name: str, source: Source, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.log = scratch / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.log"
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(name, source, scratch, self.log, theirs))
        self.process.start()
        theirs.close()

    def answer(self) -> Any:
        """What the process sends next; raises ArmError where that is no number."""
        if not self.pipe.poll(PATIENCE):
            raise ArmError(f"no answer in {PATIENCE} s")
        try:
            got = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise ArmError(f"its process ended with exit code {self.process.exitcode}") from None
        if isinstance(got, str):
            raise ArmError(got)
        return got

    def epoch(self) -> float:
        """Rows a second of one epoch."""
        self.pipe.send(True)
        rows, seconds = self.answer()
        return rows / seconds

    def close(self) -> None:
        """End the process, and with it its workers."""
        with suppress(OSError):  # it is gone
            self.pipe.send(False)
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Field:
    """The arms that run, with their rates; those that cannot or no longer, with the reason."""

    def __init__(self, names: Iterable[str], source: Source, scratch: Path) -> None:
        self.runners: dict[str, Runner] = {}
        self.rates: dict[str, list[float]] = {}
        self.first: dict[str, float] = {}
        self.missing: dict[str, str] = {}
        self.source, self.scratch, self.names = source, scratch, list(names)

    def start(self) -> None:
        """Start one arm after the other, each to the end of its check."""
        for name in self.names:
            if not installed(ARMS[name].module):
                self.missing[name] = "not installed"
                continue
            self.runners[name] = Runner(name, self.source, self.scratch)
            try:
                self.first[name] = self.runners[name].answer()
                self.rates[name] = []
            except ArmError as error:
                self.drop(name, error)

    def repeat(self) -> None:
        """An epoch of each in turn."""
        for name, runner in list(self.runners.items()):
            try:
                self.rates[name].append(runner.epoch())
            except (ArmError, OSError) as error:
                self.drop(name, error)

    def drop(self, name: str, error: Exception) -> None:
        """Go on without an arm, and say why."""
        runner = self.runners.pop(name)
        runner.close()
        self.missing[name] = f"failed: {error} (see {runner.log})"
        self.rates.pop(name, None)

    def close(self) -> None:
        """End all processes."""
        while self.runners:
            self.runners.popitem()[1].close()


def installed(module: str) -> bool:
    """Whether a module could be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def release(module: str) -> str:
    """The distribution that a module comes in, and its version."""
    [name, *_] = packages_distributions()[module.partition(".")[0]]
    return f"{name} {version(name)}"


def measure(source: Source, names: list[str], scratch: Path, repeats: int) -> dict[str, Any]:
    """All of it."""
    field = Field(names, source, scratch)
    try:
        field.start()
        for _ in range(repeats):
            field.repeat()
    finally:
        field.close()
    rates, row_bytes = field.rates, source.store.manifest.row_bytes
    facts: dict[str, Any] = {"rows": source.count, "batch_size": source.batch_size, "repeats": repeats}
    facts["samples_per_s"] = {name: statistics.median(values) for name, values in rates.items()}
    facts["bytes_per_s"] = {name: rate * row_bytes for name, rate in facts["samples_per_s"].items()}
    facts["ratio_to_loader"] = {
        name: statistics.median(a / b for a, b in zip(values, rates[ARMS[name].beside], strict=True))
        for name, values in rates.items()
        if ARMS[name].beside in rates
    }
    facts["first_batch_s"] = {name: field.first[name] for name in rates}
    facts["versions"] = {name: release(ARMS[name].module) for name in rates}
    return {**facts, "row_bytes": row_bytes, "every_samples_per_s": rates, "missing": field.missing}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--rows", type=int, default=3000, help="at most so many of the store's rows are converted")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--arm", action="append", choices=ARMS, help="only this one; may be given again")
    parser.add_argument("--scratch", type=Path, default=SCRATCH, help="where converted rows are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    asked = parser.parse_args()
    share = asked.batch_size * WORKERS
    count = min(asked.rows, len(open_store(asked.store))) // share * share
    if not count:
        parser.error(f"--rows and the store's rows must be {share} or more: a batch for each worker")
    source = Source(asked.store, count, asked.batch_size)
    facts = measure(source, asked.arm or list(ARMS), asked.scratch.resolve(), asked.repeats)
    print(json.dumps(facts) if asked.json else table(facts))


def table(facts: dict[str, Any]) -> str:
    """The lines of a terminal."""
    lines = [f"{facts['rows']} rows of {facts['row_bytes'] / 1e3:.0f} kB, batches of {facts['batch_size']}, warm"]
    for name, rate in facts["samples_per_s"].items():
        gigabytes, first = facts["bytes_per_s"][name] / 1e9, facts["first_batch_s"][name]
        line = f"{name:28s} {gigabytes:6.2f} GB/s {rate:9,.0f} rows/s, first batch {first * 1e3:6,.0f} ms"
        if name in facts["ratio_to_loader"]:
            line += f" {facts['ratio_to_loader'][name]:6.3f} of {ARMS[name].beside}"
        lines.append(f"{line} ({facts['versions'][name]})")
    return "\n".join([*lines, *(f"{name:28s} {why}" for name, why in facts["missing"].items())])


if __name__ == "__main__":
    main()
