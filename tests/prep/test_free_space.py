"""Free space and quotas, on real file systems and with fake tools for Lustre and quotas."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from decodeonce.errors import BuildError
from decodeonce.host import free_space as free_space_of
from decodeonce.prep.building import free_space
from decodeonce.prep.building.free_space import (
    Need,
    Quota,
    Storage,
    check_free_space,
    describe_storage,
    find_storage,
    stripe_advice,
)
from tests.command import prep, write_program
from tests.disks import reporting_disk
from tests.images import make_tree

# As printed by lfs 2.15 (`lfs quota -q`, which breaks lines after long names) and quota 4.06 (--no-wrap --raw-grace).
LFS_QUOTA = "/lustre/scratch/a-rather-long-name\n  1048576  0  3145728  -  90  0  100  -\n"
LFS_DEFAULT = (
    "/lustre 1048576 0 3145728 - 90 0 100 -\n"
    "uid 1000 is using default block quota setting\nuid 1000 is using default file quota setting\n"
)
LFS_NO_LIMIT = "/lustre 1048576 0 0 - 90 0 0 -\n"
QUOTA = """\
Disk quotas for user bob (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      /dev/sda1 2500000* 2000000 3000000 1732200000      10       0       0       0
"""
NO_QUOTA = "Disk quotas for user root (uid 0): none\n"
PLAIN_LAYOUT = "stripe_count:  1 stripe_size:   1048576 pattern:       0 stripe_offset: -1\n"
PROGRESSIVE = "  lcm_layout_gen:    0\n  lcm_mirror_count:  1\n  lcm_entry_count:   3\n"
Tool = Callable[..., None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Install fake programs on the path; each prints the text of the first shell pattern that its arguments match."""
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(name: str, **answers: str) -> None:
        cases = "".join(f"  *'{pattern}'*) cat <<'EOF'\n{text}EOF\n  ;;\n" for pattern, text in answers.items())
        write_program(folder, name, f'case "$*" in\n{cases}esac\nexit 1')

    return install


def test_find_storage_on_real_file_system(tmp_path: Path) -> None:
    storage = find_storage(tmp_path / "not" / "yet")
    assert storage.place == tmp_path
    assert storage.free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    assert storage.free_files is None or storage.free_files > 0
    assert describe_storage(storage)[0].startswith(f"{tmp_path}: ")
    check_free_space(Path("/d/out"), storage, Need(1, 1, 1))
    (tmp_path / "scratch").symlink_to("/dev/shm")
    assert find_storage(tmp_path / "scratch" / "out").place == Path("/dev/shm")
    quotas = (Quota("user 5", 10**9, 20), Quota("group 5", None, None))
    check_free_space(Path("/d/out"), Storage(Path("/d"), "NFS", 10**9, 20, quotas), Need(7, 10**9, 20))  # just enough


def test_too_little_space_is_an_error() -> None:
    for storage, message in (
        (Storage(Path("/d"), None, 10**9 - 1, None, ()), r"/d/out: 1.00 GB free, 1.00 GB needed for 7 rows; make room"),
        (Storage(Path("/d"), None, 4096, None, ()), r"/d/out: 4.10 KB free, 1.00 GB needed for 7 rows; make room"),
        (Storage(Path("/d"), None, 10**9, 19, ()), r"/d/out: 19 more files allowed, 20 needed; .*--shard-size"),
        (Storage(Path("/d"), None, 10**12, None, (Quota("user 5", 10**8, None),)), r"0.10 GB free within the quota of"),
        (Storage(Path("/d"), None, 10**12, None, (Quota("group 5", None, 3),)), r"3 more files .* quota of group 5"),
    ):
        with pytest.raises(BuildError, match=message):
            check_free_space(Path("/d/out"), storage, Need(7, 10**9, 20))


CEPHFS = (1000, 500, 500, 8, -1)  # 16.2 through ceph-fuse
NO_MANAGER = (0, 0, 0, 8, -1)


@pytest.mark.parametrize(("figures", "free"), [(CEPHFS, 500 * 4096), (NO_MANAGER, None)])
def test_cephfs_does_not_stop_build(figures: tuple[int, int, int, int, int], free: int | None, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", per_class=1)
    with reporting_disk(tmp_path, figures) as disk:
        storage = find_storage(disk / "out")
        assert (storage.kind, storage.free_bytes, storage.free_files) == ("FUSE", free, None)
        assert "files" not in describe_storage(storage)[0]
        assert prep("build", "imagenet", tree, disk / "out", "--dry-run", "--size", 24).returncode == 0


def test_senseless_figures_mean_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for figures, free in (
        ((10, 4, 10, 4), (4 * 512, 4)),
        ((10, 0, 10, 0), (0, 0)),
        ((10, 11, 10, 11), (None, None)),
        ((10, -1, 10, -1), (None, None)),
        ((10, 2**64 - 1, 8, 2**64 - 1), (None, None)),
        ((0, 0, 0, 0), (None, None)),
    ):
        blocks, room, files, more = figures
        facts = os.statvfs_result((4096, 512, blocks, room, room, files, more, more, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda path, facts=facts: facts)
        assert free_space_of(Path("/")) == free


def test_quota_output_is_parsed(tool: Tool, tmp_path: Path) -> None:
    limited = Quota(f"user {os.getuid()}", 500000 << 10, None)
    for printed, quotas in ((QUOTA, (limited,)), (NO_QUOTA, ()), ("", ()), ("quota: hm\n", ())):
        tool("quota", filesystem=printed)
        storage = find_storage(tmp_path)
        assert storage.quotas == quotas
        assert len(describe_storage(storage)) == 1 + len(quotas)


def test_lfs_output_is_parsed(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "network_file_system", lambda place: "Lustre")
    tool("lfs", **{"-u ": LFS_QUOTA, "-g ": LFS_NO_LIMIT, "-p 77": LFS_DEFAULT, "project": "   77 P /lustre\n"})
    storage = find_storage(tmp_path)
    left = (2 << 30, 10)
    assert storage.quotas == (Quota(f"user {os.getuid()}", *left), Quota("project 77", *left))
    assert describe_storage(storage)[1] == f"the quota of user {os.getuid()} leaves 2.15 GB and 10 files"


def test_striping_is_advised_for_folder_without_stripes(tool: Tool, tmp_path: Path) -> None:
    lustre, local = (Storage(tmp_path, kind, 0, None, ()) for kind in ("Lustre", None))
    tool("lfs", getstripe=PLAIN_LAYOUT)
    [advice] = stripe_advice(tmp_path / "a b", lustre)
    assert advice.endswith(f"mkdir -p '{tmp_path}/a b' && lfs setstripe -c 8 -S 16M '{tmp_path}/a b'")
    assert stripe_advice(tmp_path, local) == []
    tool("lfs", getstripe=PROGRESSIVE)
    assert stripe_advice(tmp_path, lustre) == []


def test_hanging_tool_times_out(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_space, "QUOTA_SECONDS", 0.05)
    write_program(tmp_path / "bin", "quota", "exec tail -f /dev/null")
    assert find_storage(tmp_path).quotas == ()
