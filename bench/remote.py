"""Compare builds from an S3 server with latency and failures with builds from the same files on a local disk.

    python -m bench.remote [SRC] [--repeats 3] [--workers 1] [--images 9000] [--latency 0.05] [--failures 0.02] [--json]

SRC is a tree `train/<wnid>/*.JPEG`; without it a sample tree is generated in build/. Its images are written as a tar of
WebDataset, as a Parquet file with row groups of 100 images, and as single objects in a list. The server is a process on
this machine, which answers each request after --latency seconds, and a share of them with 503. It has the first core
for itself. All builds, also those from files, run on the next cores, one per worker, because the server of a real store
is another machine. The server sends about 1,500 images per second, so more than three workers may wait for it. Each
repeat builds from the files and from the server in turn, in processes of their own, with warm files. Rates cover the
whole of `work`. Planning, which lists the source, is timed separately. The processor time per image is that of all
workers, with their start. Memory is that of the largest worker.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from bench.build import SCRATCH, find_tree
from bench.conditions import conditions, print_facts, ratio

KINDS = {"webdataset": "a.tar", "parquet": "a.parquet", "list": "list.txt"}
GROUP = 100


def write_forms(tree: Path, images: int, into: Path) -> None:
    """Write `images` images of the tree's train split in each of the forms."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.forms.webdataset import sample, write_tar

    found = sorted(tree.glob("train/*/*.JPEG"))
    classes = {name: label for label, name in enumerate(sorted({path.parent.name for path in found}))}
    chosen = [found[number % len(found)] for number in range(images)]
    labels = [classes[path.parent.name] for path in chosen]
    samples = (sample(f"{n:06d}", path.read_bytes(), cls=labels[n]) for n, path in enumerate(chosen))
    write_tar(into / KINDS["webdataset"], (part for parts in samples for part in parts))
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(into / KINDS["parquet"], schema) as writer:
        for first in range(0, images, GROUP):
            data = [path.read_bytes() for path in chosen[first : first + GROUP]]
            writer.write_table(pa.table([data, labels[first : first + GROUP]], schema=schema))
    for number, path in enumerate(chosen):
        copy = into / path.parent.name / f"{number:06d}.JPEG"
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    names = [f"{path.parent.name}/{number:06d}.JPEG" for number, path in enumerate(chosen)]
    (into / KINDS["list"]).write_text("".join(f"{name}\n" for name in names))


async def answer(reader: Any, writer: Any, root: Path, latency: float, failing: float, requests: Any) -> None:
    """Answer the requests of a connection: GET of /bucket/KEY, with or without a range; 404 for others."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            first, *lines = head.decode().split("\r\n")
            _, target, _ = first.split(" ", 2)
            ranges = [line.partition("=")[2].split("-") for line in lines if line.lower().startswith("range:")]
            await asyncio.sleep(latency)
            path = root / target.partition("?")[0].removeprefix("/bucket").removeprefix("/")
            number = next(requests)
            if int(number * failing) != int((number - 1) * failing):
                writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
            elif not path.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            else:
                size = path.stat().st_size
                start, end = [int(edge) for edge in ranges[0]] if ranges else [0, size - 1]
                body = os.pread((fd := os.open(path, os.O_RDONLY)), min(end + 1, size) - start, start)
                os.close(fd)
                etag = hashlib.md5(str(path).encode()).hexdigest()
                status = f"206 Partial Content\r\nContent-Range: bytes {start}-{end}/{size}" if ranges else "200 OK"
                facts = f'ETag: "{etag}"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: {len(body)}'
                writer.write(f"HTTP/1.1 {status}\r\n{facts}\r\n\r\n".encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(root: Path, latency: float, failing: float) -> None:
    """Serve the files below `root` on the first core and a free port, which is printed first."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    requests = count(1)

    async def connected(reader: Any, writer: Any) -> None:
        await answer(reader, writer, root, latency, failing, requests)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def build_once(kind: str, src: str, workers: int) -> dict[str, float]:
    """Build from SRC; return the seconds of planning, the images/s of work, and the time and memory of workers."""
    from decodeonce.prep.building.build import make_plan
    from decodeonce.prep.building.pool import WorkSettings, work
    from decodeonce.prep.recipe import Recipe
    from decodeonce.prep.sources import find_opener

    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        out, start = Path(scratch, "store"), time.perf_counter()
        plan = make_plan(find_opener(kind)(src), out, Recipe(shuffle_seed=None if kind == "parquet" else 0))
        planned = time.perf_counter() - start
        start = time.perf_counter()
        work(out, WorkSettings(workers=workers, max_bad="1%"))
        per_s = plan.count / (time.perf_counter() - start)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_ms = (used.ru_utime + used.ru_stime) / plan.count * 1000
    return {"plan_s": planned, "per_s": per_s, "cpu_ms": cpu_ms, "worker_mib": used.ru_maxrss / 1024}


def measure(root: Path, endpoint: str, workers: int, repeats: int) -> dict[str, Any]:
    """Run interleaved repeats; return medians for each kind, local and remote."""
    access = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    facts: dict[str, Any] = {}
    for kind, name in KINDS.items():
        runs: dict[str, list[dict[str, float]]] = {"local": [], "remote": []}
        for _ in range(repeats):
            for where, src in (("local", str(root / name)), ("remote", f"s3://bucket/{name}")):
                command = [sys.executable, "-m", "bench.remote", src, "--build", kind, "--workers", str(workers)]
                done = subprocess.run(command, env={**os.environ, **access}, check=True, stdout=subprocess.PIPE)
                runs[where].append(json.loads(done.stdout))
        for where, each in runs.items():
            facts |= {f"{kind}_{where}_{key}": statistics.median(run[key] for run in each) for key in each[0]}
        rates = {where: [run["per_s"] for run in each] for where, each in runs.items()}
        facts[f"{kind}_remote_over_local"] = ratio(rates["remote"], rates["local"])
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--images", type=int, default=9000)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--failures", type=float, default=0.02)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--build", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.latency, options.failures))
        return
    if options.build:
        print(json.dumps(build_once(options.build, options.source, options.workers)))
        return
    _, *cores = sorted(os.sched_getaffinity(0))
    if len(cores) < options.workers:
        parser.error(f"--workers: expected at most {len(cores)}, one fewer than the cores")
    source = find_tree(Path(options.source) if options.source else None)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        write_forms(source, options.images, Path(scratch))
        what = f"{options.latency * 1000:g} ms of latency, {options.failures:.0%} failures, warm"
        facts: dict[str, Any] = {"conditions": conditions(options.images, what)}
        flags = ["--latency", str(options.latency), "--failures", str(options.failures)]
        command = [sys.executable, "-m", "bench.remote", "--serve", scratch, *flags]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            os.sched_setaffinity(0, cores[: options.workers])
            facts |= measure(Path(scratch), endpoint, options.workers, options.repeats)
            server.terminate()
    print_facts(facts, as_json=options.json, width=26)


if __name__ == "__main__":
    main()
