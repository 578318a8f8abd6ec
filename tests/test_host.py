"""Cores, memory and file system facts of the host, read from fake cgroup trees (v1 and v2) and from this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from decodeonce.host import (
    available_memory,
    cgroup_cores,
    cgroup_memory,
    cgroup_room,
    is_in_memory,
    network_file_system,
    read_ahead_bytes,
    usable_cores,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        (  # the smallest quota of all ancestors
            "0::/slice/job/step",
            {"slice/job/step/cpu.max": "max 9", "slice/job/cpu.max": "15 10", "slice/cpu.max": "80 10"},
            1.5,
        ),
        (  # cgroup v1
            "4:memory:/job\n3:cpu,cpuacct:/job",
            {f"cpu/job/{QUOTA}": "30", f"cpu/job/{PERIOD}": "10", f"cpu/{QUOTA}": "-1", f"cpu/{PERIOD}": "10"},
            3,
        ),
        ("0::/job", {"job/cpu.max": "", "job/memory.max": ""}, None),
        ("0::/", {}, None),
        ("", {}, None),
        ("0::/gone", {}, None),
    ],
)
def test_cpu_quota_of_cgroup(tmp_path: Path, own: str, files: dict[str, str], cores: float | None) -> None:
    write(tmp_path / "self", f"{own}\n" if own else "")
    for name, text in files.items():
        write(tmp_path / "fs" / name, f"{text}\n")
    assert cgroup_cores(tmp_path / "fs", tmp_path / "self") == cores
    assert cgroup_cores(tmp_path / "fs", tmp_path / "nowhere") is None
    assert cgroup_memory(tmp_path / "fs", tmp_path / "self") is None


def test_affinity_mask_is_respected() -> None:
    core = min(os.sched_getaffinity(0))
    script = f"import os; os.sched_setaffinity(0, [{core}]); import decodeonce.host as h; print(h.usable_cores())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"1\n"
    assert usable_cores() >= 1


def test_read_ahead_size_is_that_of_device(tmp_path: Path) -> None:
    found = read_ahead_bytes(tmp_path)
    assert found >= 128 << 10
    assert found % 1024 == 0
    device = tmp_path.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    if setting.exists():
        assert found == max(128 << 10, int(setting.read_text()) << 10)
    assert read_ahead_bytes(Path("/proc")) == 128 << 10  # the default: /proc has no device


def test_open_file_limit_is_raised_up_to_hard_limit() -> None:
    code = (
        "import resource; from decodeonce.host import allow_open_files; N = resource.RLIMIT_NOFILE\n"
        "resource.setrlimit(N, (600, 2000)); allow_open_files(80); print(resource.getrlimit(N))\n"
        "allow_open_files(1000); print(resource.getrlimit(N))\n"
        "allow_open_files(5000); print(resource.getrlimit(N))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines() == ["(600, 2000)", "(1512, 2000)", "(2000, 2000)"]


def test_smallest_memory_limit_of_ancestors_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "self", "0::/slice/job\n")
    write(tmp_path / "fs/slice/job/memory.max", "max\n")
    write(tmp_path / "fs/slice/memory.max", "4096000\n")
    assert cgroup_memory(tmp_path / "fs", tmp_path / "self") == 4096000
    write(tmp_path / "v1", "4:memory:/job\n3:cpu,cpuacct:/job\n")
    write(tmp_path / "fs/memory/job/memory.limit_in_bytes", "8192000\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")  # no limit in cgroup v1
    assert cgroup_memory(tmp_path / "fs", tmp_path / "v1") == 8192000
    assert cgroup_memory(tmp_path / "nowhere", tmp_path / "self") is None
    write(tmp_path / "fs/memory/job/memory.stat", "cache 5000\nrss 7000\ntotal_rss 96000\n")  # 7000 without children
    assert cgroup_room(tmp_path / "fs", tmp_path / "v1") == 8192000 - 96000
    write(tmp_path / "fs/slice/job/memory.stat", "anon 12000\nfile 5000\n")  # without a limit
    write(tmp_path / "fs/slice/memory.stat", "anon 90000\nfile 50000\nshmem 6000\nslab_unreclaimable 1000\n")
    assert cgroup_room(tmp_path / "fs", tmp_path / "self") == 4096000 - 97000
    write(tmp_path / "fs/slice/memory.stat", "anon 5000000\n")
    assert cgroup_room(tmp_path / "fs", tmp_path / "self") == 0
    assert cgroup_room(tmp_path / "nowhere", tmp_path / "self") is None
    monkeypatch.setattr("decodeonce.host.cgroup_room", lambda: 4096000)
    assert available_memory() == 4096000


def test_only_tmpfs_and_ramfs_are_in_memory() -> None:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    in_memory = [path for path, kind in mounts if kind in ("tmpfs", "ramfs") and os.path.isdir(path)]
    if not in_memory:
        pytest.skip("no tmpfs is mounted here")
    assert all(is_in_memory(Path(path)) for path in in_memory)
    assert not is_in_memory(Path("/proc"))
    assert network_file_system(Path("/proc")) is None
