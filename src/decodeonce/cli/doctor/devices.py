"""Checks of GPUs: their driver, the memory that can be pinned for copies to them, and their NUMA nodes."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from decodeonce.cli.doctor.check import Finding, ok, warn
from decodeonce.cli.doctor.gpus import AMD, ROOT, device_files, find_gpus, read_text
from decodeonce.formatting import counted, size_text
from decodeonce.host import available_memory

PINNED = 1 << 30  # bytes; three batches of 1,024 images of 256x256 pixels are 0.6 GB
NVIDIA_VERSION = re.compile(r"\b\d{3}\.\d+(\.\d+)?\b")
SMI_SECONDS = 60  # nvidia-smi can take long if the driver must start first


def gpu_driver(root: Path = ROOT) -> Finding:
    """Report the driver of each GPU and its version."""
    gpus = find_gpus(root)
    if not gpus:  # some containers have the files of a GPU, but not the PCI bus
        files = device_files(root)
        return ok(f"{files}, {_hidden_driver(files, root)}, not on the PCI bus" if files else "no GPU on the PCI bus")
    kinds = Counter((gpu.vendor.name, gpu.driver) for gpu in gpus)
    parts = [f"{counted(n, f'{vendor} GPU')}, {_driver_text(driver, root)}" for (vendor, driver), n in kinds.items()]
    if unfit := [gpu for gpu in gpus if gpu.driver not in gpu.vendor.drivers]:
        driver = unfit[0].vendor.drivers[0]
        addresses = ", ".join(gpu.address for gpu in unfit if gpu.vendor == unfit[0].vendor)
        advice = f"to train on {addresses}, install the driver {driver} and load it: modprobe {driver}"
        return warn("; ".join(parts), advice)
    return ok("; ".join(parts))


def _driver_text(driver: str, root: Path) -> str:
    if not driver:
        return "no driver"
    version = read_text(root / "sys/module" / driver / "version")  # drivers that come with Linux have none
    return f"driver {driver} {version or f'of Linux {os.uname().release}'}"


def _hidden_driver(files: str, root: Path) -> str:
    if files == AMD:
        return _driver_text("amdgpu", root)
    version = NVIDIA_VERSION.search(read_text(root / "proc/driver/nvidia/version") or _smi_output())
    return f"driver nvidia {version[0]}" if version else "driver of unknown version"


def _smi_output() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=False).stdout
    return ""


def pinned_memory(root: Path = ROOT) -> Finding:
    """Check the limit of locked memory, and the free memory of the host."""
    return pinned_memory_check(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], available_memory(), device_files(root))


def pinned_memory_check(limit: int, available: int | None, gpus: str) -> Finding:
    """Return the finding for a `ulimit -l` and available memory in bytes, on a machine with `gpus` ("" for none).

    The driver of AMD counts pinned memory towards the limit, that of NVIDIA does not.
    """
    unlimited = limit == resource.RLIM_INFINITY
    memory = "unknown memory" if available is None else f"{size_text(available)} of memory"
    found = f"ulimit -l {'unlimited' if unlimited else size_text(limit)}, {memory} available"
    if gpus == AMD and not unlimited and limit < PINNED:
        return warn(found, "run: ulimit -l unlimited; ROCm counts pinned batches towards this limit")
    if gpus and available is not None and available < PINNED:
        return warn(found, "request more memory from the batch system (--mem); the Loader pins three batches of a rank")
    return ok(found)


def numa_nodes(root: Path = ROOT, cores: set[int] | None = None) -> Finding:
    """Compare the NUMA nodes of the GPUs with those of `cores`; by default the cores that this process may use."""
    allowed = os.sched_getaffinity(0) if cores is None else cores
    own = sorted(node for node, of_node in _cores_of_nodes(root).items() if of_node & allowed)
    gpus: dict[int | None, list[str]] = {}
    for gpu in find_gpus(root):
        gpus.setdefault(gpu.node, []).append(gpu.address)
    parts = [f"GPU {', '.join(found)} on {_node_text([node])}" for node, found in gpus.items()]
    if not own:
        return ok("; ".join([*parts, "the system reports no NUMA nodes"]))
    text = "; ".join([*parts, f"this process on {_node_text(own)}"])
    near = sorted(node for node in gpus if node is not None)
    if near and not {*near} & {*own}:
        run = f"numactl --all --cpunodebind={near[0]} COMMAND"
        return warn(text, f"copies between nodes are slower; use cores of node {near[0]}, for example: {run}")
    return ok(text)


def _node_text(nodes: Sequence[int | None]) -> str:
    known = [str(node) for node in nodes if node is not None]
    return f"node {', '.join(known)}" if known else "an unknown node"


def _cores_of_nodes(root: Path) -> dict[int, set[int]]:
    """Return the cores of each NUMA node; nodes that only have memory have none."""
    folders = (root / "sys/devices/system/node").glob("node[0-9]*")
    return {int(folder.name.removeprefix("node")): _cores(read_text(folder / "cpulist")) for folder in folders}


def _cores(cpulist: str) -> set[int]:
    """Parse a list of cores such as "0-3,8"."""
    ends = [part.partition("-") for part in cpulist.split(",") if part]
    return {core for first, _, last in ends for core in range(int(first), int(last or first) + 1)}
