"""The checks of GPUs in `prep doctor`, on folders that look like those of the kernel."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from decodeonce.cli.doctor.check import ok
from decodeonce.cli.doctor.devices import gpu_driver, numa_nodes, pinned_memory, pinned_memory_check
from decodeonce.cli.doctor.gpus import AMD, NVIDIA, find_gpus

H200 = ("0x10de", "0x030200", "nvidia")
MI300X = ("0x1002", "0x120000", "amdgpu")
LINUX = f"of Linux {os.uname().release}"


def add_device(root: Path, address: str, kind: tuple[str, str, str], node: int = -1) -> None:
    """Add a PCI device: its vendor, class and driver ("" for none)."""
    vendor, number, driver = kind
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("class", number), ("numa_node", node)):
        (folder / name).write_text(f"{value}\n")
    if driver:
        (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_nodes(root: Path, *cpulists: str) -> None:
    """Add NUMA nodes with these cores."""
    for number, cpulist in enumerate(cpulists):
        write(root / f"sys/devices/system/node/node{number}/cpulist", f"{cpulist}\n")
    write(root / "sys/devices/system/node/online", "0-1\n")


def test_gpus_are_found_among_other_devices(tmp_path: Path) -> None:
    add_device(tmp_path, "0000:ca:00.0", H200, node=1)
    add_device(tmp_path, "0000:17:00.0", H200, node=0)
    add_device(tmp_path, "0000:17:00.1", ("0x10de", "0x040300", "snd_hda_intel"))  # sound over HDMI
    add_device(tmp_path, "0000:03:00.0", ("0x1a03", "0x030000", "ast"))  # the screen of a server
    add_device(tmp_path, "0000:00:0b.0", ("0x8086", "0x120000", "intel_vpu"))  # not a GPU
    add_device(tmp_path, "0000:05:00.0", ("0x15b3", "0x020000", "mlx5_core"))
    found = [(gpu.address, gpu.vendor.name, gpu.driver, gpu.node) for gpu in find_gpus(tmp_path)]
    assert found == [("0000:17:00.0", "NVIDIA", "nvidia", 0), ("0000:ca:00.0", "NVIDIA", "nvidia", 1)]


def test_driver_and_its_version_are_reported(tmp_path: Path) -> None:
    assert gpu_driver(tmp_path) == ok("no GPU on the PCI bus")
    for address in ("0000:17:00.0", "0000:ca:00.0"):
        add_device(tmp_path, address, H200)
    write(tmp_path / "sys/module/nvidia/version", "580.159.03\n")
    assert gpu_driver(tmp_path) == ok("2 NVIDIA GPUs, driver nvidia 580.159.03")
    add_device(tmp_path, "0001:00:00.0", MI300X)
    assert gpu_driver(tmp_path) == ok(f"2 NVIDIA GPUs, driver nvidia 580.159.03; 1 AMD GPU, driver amdgpu {LINUX}")


@pytest.mark.parametrize(("driver", "found"), [("", "no driver"), ("nouveau", f"driver nouveau {LINUX}")])
def test_gpu_without_a_fitting_driver_is_a_warning(driver: str, found: str, tmp_path: Path) -> None:
    add_device(tmp_path, "0000:17:00.0", ("0x10de", "0x030200", driver))
    check = gpu_driver(tmp_path)
    assert (check.level, check.found) == ("warn", f"1 NVIDIA GPU, {found}")
    assert check.advice == "to train on 0000:17:00.0, install the driver nvidia and load it: modprobe nvidia"


@pytest.mark.parametrize(
    "version",
    [
        "NVIDIA UNIX x86_64 Kernel Module  580.159.03  Tue Oct 14 10:00:00 UTC 2025\n",
        "NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version:  gcc 12.2.0\n",
    ],
)
def test_driver_is_found_without_a_pci_bus(version: str, tmp_path: Path) -> None:
    write(tmp_path / "dev/nvidia3")
    write(tmp_path / "proc/driver/nvidia/version", f"NVRM version: {version}")
    assert gpu_driver(tmp_path) == ok("NVIDIA GPUs, driver nvidia 580.159.03, not on the PCI bus")


def test_nvidia_smi_is_asked_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin/nvidia-smi"
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    write(tmp_path / "dev/nvidia0")
    write(program, "#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    program.chmod(0o755)
    assert gpu_driver(tmp_path) == ok("NVIDIA GPUs, driver of unknown version, not on the PCI bus")
    write(program, "#!/bin/sh\necho 570.86.15\necho 570.86.15\n")
    assert gpu_driver(tmp_path) == ok("NVIDIA GPUs, driver nvidia 570.86.15, not on the PCI bus")


def test_amd_driver_is_found_without_a_pci_bus(tmp_path: Path) -> None:
    write(tmp_path / "dev/kfd")
    write(tmp_path / "sys/module/amdgpu/version", "6.12.12\n")
    assert gpu_driver(tmp_path) == ok("AMD GPUs, driver amdgpu 6.12.12, not on the PCI bus")


def test_nodes_of_gpus_and_process_are_reported(tmp_path: Path) -> None:
    add_nodes(tmp_path, "0-3,8-11", "4-7,12-15", "")  # the last node has only memory
    assert numa_nodes(tmp_path, {0}) == ok("this process on node 0")
    add_device(tmp_path, "0000:17:00.0", H200, node=0)
    add_device(tmp_path, "0000:2a:00.0", H200, node=0)
    add_device(tmp_path, "0000:ca:00.0", H200, node=1)
    gpus = "GPU 0000:17:00.0, 0000:2a:00.0 on node 0; GPU 0000:ca:00.0 on node 1"
    assert numa_nodes(tmp_path, {8}) == ok(f"{gpus}; this process on node 0")
    assert numa_nodes(tmp_path, {3, 12}) == ok(f"{gpus}; this process on node 0, 1")


def test_process_far_from_every_gpu_is_a_warning(tmp_path: Path) -> None:
    add_nodes(tmp_path, "0-1", "2-3")
    add_device(tmp_path, "0000:ca:00.0", H200, node=1)
    check = numa_nodes(tmp_path, {0, 1})
    assert (check.level, check.found) == ("warn", "GPU 0000:ca:00.0 on node 1; this process on node 0")
    assert check.advice.endswith("use cores of node 1, for example: numactl --all --cpunodebind=1 COMMAND")
    assert numa_nodes(tmp_path, {1, 2}).level == "ok"


def test_machine_without_numa_information(tmp_path: Path) -> None:
    assert numa_nodes(tmp_path) == ok("the system reports no NUMA nodes")
    add_device(tmp_path, "0000:00:05.0", H200)
    unknown = "GPU 0000:00:05.0 on an unknown node"
    assert numa_nodes(tmp_path) == ok(f"{unknown}; the system reports no NUMA nodes")
    add_nodes(tmp_path, "0-7")
    assert numa_nodes(tmp_path, {7}) == ok(f"{unknown}; this process on node 0")


@pytest.mark.parametrize(
    ("limit", "available", "gpus", "level", "advice"),
    [
        (8 << 20, 64 << 30, "", "ok", ""),
        (8 << 20, 64 << 30, NVIDIA, "ok", ""),
        (8 << 20, 64 << 30, AMD, "warn", "ulimit -l unlimited"),
        (resource.RLIM_INFINITY, 64 << 30, AMD, "ok", ""),
        (resource.RLIM_INFINITY, 100 << 20, NVIDIA, "warn", "--mem"),
        (resource.RLIM_INFINITY, 100 << 20, "", "ok", ""),
        (resource.RLIM_INFINITY, None, NVIDIA, "ok", ""),
    ],
)
def test_limit_of_pinned_memory(limit: int, available: int | None, gpus: str, level: str, advice: str) -> None:
    check = pinned_memory_check(limit, available, gpus)
    assert (check.level, bool(check.advice)) == (level, bool(advice))
    assert advice in check.advice


def test_pinned_memory_is_that_of_this_process(tmp_path: Path) -> None:
    assert pinned_memory_check(8 << 20, 2 << 30, "").found == "ulimit -l 8.39 MB, 2.15 GB of memory available"
    assert pinned_memory_check(-1, None, "").found == "ulimit -l unlimited, unknown memory available"
    assert pinned_memory(tmp_path).found.startswith("ulimit -l ")
