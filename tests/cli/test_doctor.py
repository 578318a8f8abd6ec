"""`prep doctor` in this environment and in damaged ones."""

from __future__ import annotations

import errno
import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decodeonce.cli import doctor
from decodeonce.cli.doctor import machine, pil, software, storage
from decodeonce.cli.doctor.check import Finding, ok
from decodeonce.cli.doctor.locks import locks
from decodeonce.prep.build import free_space
from decodeonce.prep.build.free_space import Quota, Storage
from decodeonce.prep.pixels.versions import Pillow
from decodeonce.store import disk
from tests.command import prep_process

COMMAND = [sys.executable, "-m", "decodeonce.cli", "doctor", "--json"]
NO_TORCH = "raise ImportError('libcudart.so.13: cannot open shared object file')\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for the import path, with a torch whose import fails immediately."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "torch.py").write_text(NO_TORCH)
    return folder


def install(site: Path, name: str, version: str, needs: str = "") -> None:
    """Write the metadata of an installed distribution to the folder."""
    facts = site / f"{name.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    required = f"Requires-Dist: {needs}\n" if needs else ""
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")


def run_doctor(*wrapper: str, cwd: Path | None = None, **variables: object) -> tuple[int, dict[str, Any]]:
    """Run `prep doctor --json`, with a wrapper command if given; return exit code and JSON."""
    environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    done = subprocess.run([*wrapper, *COMMAND], env=environ, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def finding_of(facts: dict[str, Any], name: str) -> tuple[str, str, str]:
    """Return level, finding and advice of a check."""
    [check] = [check for check in facts["checks"] if check["name"] == name]
    return check["level"], check["found"], check["advice"]


def test_this_environment_is_ok() -> None:
    code, facts = run_doctor()
    assert (code, facts["ok"]) == (0, True), facts["problems"]
    assert {check["level"] for check in facts["checks"]} <= {"ok", "warn"}
    assert all(bool(check["advice"]) == (check["level"] != "ok") for check in facts["checks"])
    assert len(facts["problems"]) == sum(check["level"] != "ok" for check in facts["checks"])
    assert len(facts["checks"]) == len(doctor.CHECKS) + 5
    assert facts["usable_cores"] >= 1
    assert facts["pillow"].startswith("pillow")
    keys = {"decodeonce", "python", "numpy", "torch", "h5py", "xxhash", "simplejpeg", "available_memory_gb"}
    assert keys | {"open_files_limit", "launcher", "task"} < set(facts)
    assert finding_of(facts, "torch")[1].startswith(facts["torch"])
    assert "libjpeg-turbo 3" in finding_of(facts, "simplejpeg")[1]
    assert finding_of(facts, "file system")[1].startswith(f"{os.getcwd()}: ")


def test_broken_environment_is_bad_with_advice(site: Path, tmp_path: Path) -> None:
    """Both Pillow and pillow-simd, the imported one built for SSE4, a broken torch, and an impossible rank."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (site / "PIL").mkdir()
    (site / "PIL/__init__.py").write_text("__version__ = '12.0.0.post1'\n")
    (site / f"PIL/_imaging{suffix}").touch()
    install(site, "pillow", "12.0.0")
    install(site, "pillow-simd", "12.0.0.post1")
    (tmp_path / "torch.py").write_text("raise ImportError('of this folder')\n")  # must not be imported
    code, facts = run_doctor(cwd=tmp_path, PYTHONPATH=site, CC=sys.executable, RANK=5, WORLD_SIZE=2)
    assert (code, facts["ok"]) == (1, False)
    both = "pillow-simd 12.0.0.post1 and pillow 12.0.0 are both installed and overwrite each other"
    fix = "pip uninstall -y pillow pillow-simd, then pip install "
    assert finding_of(facts, "one pil") == ("bad", both, f'{fix}".[prep]"')
    live = "pillow-simd 12.0.0.post1, SSE4 (installed over each other)"
    assert finding_of(facts, "pillow") == ("warn", live, 'see "one pil"')
    level, found, advice = finding_of(facts, "torch")
    assert (level, found.partition(", ")[2]) == (
        "bad",
        "import fails: ImportError: libcudart.so.13: cannot open shared object file",
    )
    assert advice.endswith(software.TORCH_PAGE)
    level, found, advice = finding_of(facts, "libjpeg of pil")
    assert (level, found.partition(": ")[0], advice) == (
        "bad",
        "Pillow cannot be imported",
        f'{fix}".[prep]"',
    )
    assert finding_of(facts, "launcher")[1] == "RANK=5 WORLD_SIZE=2"
    impossible = "RANK is 5 and WORLD_SIZE 2, expected 0 <= RANK < WORLD_SIZE"
    assert finding_of(facts, "rank")[:2] == ("bad", f"unknown: {impossible}")
    assert finding_of(facts, "task") == ("bad", "unknown", f"pass --task I --tasks N to prep work: {impossible}")
    assert f"one pil: {both}: {fix}" in " ".join(facts["problems"])


def test_pil_advice_installs_a_fitting_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a PIL built only for SSE4, for one whose files are missing, and for none."""
    fix = 'pip uninstall -y pillow pillow-simd, then pip install ".[prep]"'
    monkeypatch.setattr(pil, "_packages_that_need_pillow", list)
    monkeypatch.setattr(pil, "_has_compiler", lambda: True)
    monkeypatch.setattr(pil, "_cpu_flags", lambda: {"avx2"})
    for live, level, advice in (
        (Pillow("pillow-simd", "12.0.0.post1", "SSE4", ("pillow-simd",)), "warn", pil.FOR_AVX2),
        (Pillow("", "", "", ("pillow-simd",)), "bad", fix),
        (Pillow("", "", "", ()), "warn", 'pip install ".[prep]"'),
    ):
        monkeypatch.setattr("decodeonce.prep.pixels.versions.find_pillow", lambda live=live: live)
        check = pil.pillow()
        assert (check.level, check.advice) == (level, advice)


def test_without_compiler_stock_pillow_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise pip would remove Pillow, fail to compile pillow-simd, and leave no PIL."""
    monkeypatch.setattr(pil, "_packages_that_need_pillow", list)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("CC", "/nowhere/cc -mavx2")
    for live in (Pillow("pillow", "12.0.0", "no SIMD", ("pillow",)), Pillow("", "", "", ())):
        monkeypatch.setattr("decodeonce.prep.pixels.versions.find_pillow", lambda live=live: live)
        advice = pil.pillow().advice
        assert '".[prep-pillow]"' in advice
        assert "uninstall" not in advice


def test_with_compiler_pillow_is_removed_after_pillow_simd_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pil, "_packages_that_need_pillow", list)
    monkeypatch.setattr(pil, "_has_compiler", lambda: True)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    stock = Pillow("pillow", "12.0.0", "no SIMD", ("pillow",))
    monkeypatch.setattr("decodeonce.prep.pixels.versions.find_pillow", lambda: stock)
    advice = pil.pillow().advice
    assert advice.index("pip wheel") < advice.index("pip uninstall") < advice.index("pip install")


@pytest.mark.parametrize(("simd", "compiler"), [("AVX2", 'CC="cc -mavx2" pip '), ("SSE4", "then pip ")])
def test_missing_formats_advice_compiles_with_same_flags(
    simd: str, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Pillow("pillow-simd", "12.0.0.post1", simd, ("pillow-simd",))
    monkeypatch.setattr("decodeonce.prep.pixels.versions.find_pillow", lambda: live)
    monkeypatch.setattr("PIL.features.check", lambda name: name != "webp")
    check = pil.formats_of_pil()
    assert (check.level, check.found) == ("warn", "built without WebP: such images are rejected")
    assert "install libwebp-dev (Fedora, RHEL: libwebp-devel)" in check.advice
    assert f"{compiler}install --force-reinstall" in check.advice
    monkeypatch.setattr("PIL.features.check", lambda name: True)
    assert pil.formats_of_pil().level == "ok"


def test_two_pils_advice_compiles_with_same_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pil, "_packages_that_need_pillow", list)
    monkeypatch.setattr(pil, "_has_compiler", lambda: True)
    live = Pillow("", "", "AVX2", ("pillow-simd",))
    monkeypatch.setattr("decodeonce.prep.pixels.versions.find_pillow", lambda: live)
    assert 'CC="cc -mavx2" pip install --no-cache-dir --no-binary pillow-simd ".[prep]"' in pil.pillow().advice


def test_package_with_failing_import_is_bad(site: Path) -> None:
    (site / "numpy.py").write_text("raise ImportError('no libgfortran')\n")
    (site / "h5py.py").write_text("raise ValueError('numpy.dtype size changed')\n")
    code, facts = run_doctor(PYTHONPATH=site)
    assert code == 1
    assert finding_of(facts, "numpy")[1].endswith(", import fails: no libgfortran")
    assert finding_of(facts, "h5py")[1].endswith(", import fails: numpy.dtype size changed")
    assert finding_of(facts, "pillow")[0] in ("ok", "warn")  # this check needs no NumPy
    assert finding_of(facts, "file system")[:2] == ("bad", ".: cannot be checked: no libgfortran")
    assert finding_of(facts, "cores")[0] in ("ok", "warn")


def test_torch_that_takes_too_long_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "TORCH_SECONDS", 0)
    finding = software.torch()
    assert finding.level == "bad"
    assert finding.found.endswith(", its import did not end within 0 s")


@pytest.mark.parametrize(
    "fails", ["raise RuntimeError('of another API')", "(", "raise SystemError('no exception set')"]
)
def test_other_checks_run_after_any_import_error(fails: str, site: Path) -> None:
    for name in ("h5py", "xxhash"):
        (site / f"{name}.py").write_text(f"{fails}\n")
    code, facts = run_doctor(PYTHONPATH=site)
    assert code == 1
    assert [finding_of(facts, name)[0] for name in ("h5py", "xxhash", "file system")] == ["bad"] * 3
    assert finding_of(facts, "cores")[0] in ("ok", "warn")


@pytest.mark.parametrize(
    ("code", "level", "expected"),
    [
        ("import atexit; print('hello'); atexit.register(print, 'bye')", "ok", "9.9: CPU only"),
        ("import os; os.write(1, b'\\xff')", "ok", "9.9: CPU only"),
        ("import os; os._exit(0)", "bad", "import fails: exit status 0"),
        ("import os; os.write(2, b'\\xff'); os._exit(1)", "bad", "import fails: \\xff"),
    ],
)
def test_torch_that_prints_or_exits_is_understood(
    code: str, level: str, expected: str, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "from types import SimpleNamespace\n__version__, version = '9.9', SimpleNamespace(cuda=None, hip=None)\n"
    (site / "torch.py").write_text(f"{version}{code}\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setattr(software, "device_files", lambda: "")
    found = software.torch()
    assert (found.level, expected in found.found) == (level, True), found


def test_pillow_is_advised_if_another_package_needs_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("CC", sys.executable)  # a program that exists
    install(site, "elsewhere", "1.0", needs='pillow>=8; extra == "pictures"')
    install(site, "similar", "1.0", needs="pillow-avif-plugin")
    install(site, "pillow", "1.0")
    install(site, "pillow-simd", "1.0.post1")
    assert pil.one_pil().advice.endswith('".[prep]"')
    install(site, "torchvision", "1.0", needs="pillow!=8.3.*,>=5.3.0")
    assert pil.one_pil().advice.endswith('".[prep-pillow]" (torchvision needs pillow)')


def test_limits_are_reported(site: Path) -> None:
    limits = ("prlimit", "--nofile=600:600", f"--as={8 << 30}", "--memlock=65536:65536", "taskset", "-c", "0")
    if not shutil.which("prlimit") or 0 not in os.sched_getaffinity(0):
        pytest.skip("prlimit(1) is missing, or core 0 is not usable")
    _, facts = run_doctor(*limits, PYTHONPATH=site)
    assert finding_of(facts, "open files")[:2] == ("warn", "600, up to 600")
    assert finding_of(facts, "address space")[:2] == ("warn", "ulimit -v 8.59 GB, ulimit -d unlimited")
    assert finding_of(facts, "torch")[2].startswith('see "address space"; if that does not help, reinstall it')
    assert finding_of(facts, "pinned memory")[1].startswith("ulimit -l 65.54 KB, ")
    whole = os.cpu_count() or 1
    level, found, _ = finding_of(facts, "cores")
    assert (level, found.partition(",")[0]) == ("warn" if whole > 1 else "ok", f"1 of {whole} usable (affinity 1")
    assert facts["open_files_limit"] == 600


def test_doctor_prints_one_line_per_check(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    result = prep_process("doctor", tmp_path, "/dev/shm", "/proc")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    width = lines[0].index("3.")
    assert {line[:6] for line in lines[:-1]} == {"ok    ", "warn  ", "bad   ", "      "}
    assert all(line[width - 2 : width] == "  " for line in lines[:-1])
    line_of = {line[6:width].strip(): line for line in lines[:-1]}
    assert "RANK=1 PMI_SIZE=2" in line_of["launcher"]
    assert line_of["task"].endswith("task 1 of 2 (PMI)")
    systems = [line[width:] for line in lines if line.startswith("ok    file system")]
    assert systems[0].startswith(f"{tmp_path}: ")
    assert systems[1].startswith("/dev/shm: tmpfs, local, mounted at /dev/shm")
    assert systems[2] == "/proc: proc, local, mounted at /proc from proc"
    assert f"ok    abilities       {tmp_path}: mmap yes, fallocate yes, O_DIRECT " in result.stdout
    assert "warn  abilities       /proc: cannot be written: " in result.stdout
    assert lines[-1].endswith(" 1 bad")
    assert list(tmp_path.iterdir()) == [site]


DEVICES: dict[str, Any] = {"version": "2.9", "cuda": "12.8", "hip": None, "devices": [], "warnings": []}


@pytest.mark.parametrize(
    ("found", "gpus", "level", "expected"),
    [
        ({"cuda": None}, "", "ok", "2.9: CPU only, no GPU found"),
        ({}, "", "ok", "2.9, CUDA 12.8: CPU only, no GPU found"),
        ({"devices": ["H200", "H200"]}, "NVIDIA GPUs", "ok", "2.9, CUDA 12.8: 2 x H200"),
        ({"devices": ["K80"], "warnings": ["CUDA: K80 is too old\nmore"]}, "NVIDIA GPUs", "warn", "1 x K80"),
        ({"cuda": None}, "NVIDIA GPUs", "warn", "2.9: built without NVIDIA GPUs support"),
        ({"cuda": None, "hip": "6.4"}, "AMD GPUs", "bad", "2.9, ROCm 6.4: cannot use the AMD GPUs of this machine"),
        (
            {"warnings": ["CUDA: The NVIDIA driver is too old"]},
            "NVIDIA GPUs",
            "bad",
            "of this machine: CUDA: The NVIDIA driver is too old",
        ),
    ],
)
def test_devices_of_torch_are_checked(found: dict[str, Any], gpus: str, level: str, expected: str) -> None:
    check = software.torch_check({**DEVICES, **found}, gpus)
    assert (check.level, check.found[-len(expected) :]) == (level, expected)
    assert bool(check.advice) == (level != "ok")


def test_hidden_devices_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert software.torch_check(DEVICES, "NVIDIA GPUs").advice == "unset CUDA_VISIBLE_DEVICES"


def test_job_array_without_size_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_ARRAY_INDEX", "3")
    assert machine.task().level == "warn"
    assert machine.rank().level == "ok"
    assert machine.launcher().found == "PBS_ARRAY_INDEX=3"


MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 22 0:35 / /scratch rw,relatime shared:9 - lustre 10.0.0.1@o2ib:/scratch rw,flock
41 22 0:36 / /with\\040blank rw - nfs4 server:/export rw
42 22 0:37 / /over rw - ext4 /dev/sda1 rw
43 22 0:38 / /over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "point", "kind"),
    [
        ("/home/me", "/", "ext4"),
        ("/scratch/me/x", "/scratch", "lustre"),
        ("/scratchy", "/", "ext4"),
        ("/with blank/x", "/with blank", "nfs4"),
        ("/over", "/over", "tmpfs"),
    ],
)
def test_mount_of_path_is_found(
    path: str, point: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(storage, "MOUNTINFO", tmp_path / "mountinfo")
    mount = storage.find_mount(Path(path))
    assert mount is not None
    assert (str(mount.point), mount.kind) == (point, kind)


def test_missing_mountinfo_gives_unknown_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOUNTINFO", tmp_path / "no-such-file")
    assert storage.check_path(tmp_path)["file system"] == ok(f"{tmp_path}: of unknown kind, local")


def test_free_space_counts_every_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def room(*quotas: Quota) -> Finding:
        return storage.room(Storage(tmp_path, "Lustre", 10**12, None, quotas))

    roomy = Quota("user 5", 10**11, None)
    many = "unlimited files"
    found = f"{tmp_path}: 1000.00 GB and {many} free, 100.00 GB and {many} in the quota of user 5"
    assert room(roomy) == ok(found)
    assert room(roomy, Quota("group 7", 10**8, None)).level == "warn"
    assert room(roomy, Quota("group 7", None, 3)).level == "warn"
    monkeypatch.setattr(free_space, "_output", lambda *command: "stripe_count:  1\n")
    lustre = Storage(tmp_path, "Lustre", 10**12, None, ())
    assert "lfs setstripe -c 8" in storage.stripes(lustre, tmp_path).advice


def test_findings_of_a_path_begin_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for finding in storage.check_path(Path(".")).values():
        assert finding.found.startswith(f"{tmp_path}: ")


def test_test_file_is_removed_on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = disk.open_file

    def as_nfs(path: Path, flags: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return made(path, flags)

    monkeypatch.setattr(disk, "open_file", as_nfs)
    check = storage.check_path(tmp_path)["abilities"]
    assert (check.level, "mmap yes" in check.found) == ("ok", True)
    assert list(tmp_path.iterdir()) == []


def test_unreachable_path_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path) -> Storage:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(free_space, "find_storage", stale)
    found = storage.check_path(tmp_path)
    assert [finding.level for finding in found.values()] == ["bad"] * 5
    assert found["file system"].found == f"{tmp_path}: Stale file handle"


def test_link_to_itself_is_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert storage.check_path(tmp_path / "loop/x")["room"].found.startswith(f"{tmp_path}: ")


@pytest.mark.parametrize(
    ("mount", "level", "expected"),
    [
        ("rw - nfs4 server:/home rw,vers=4.2,local_lock=none", "ok", "nfs4: no mount option restricts locks"),
        ("rw - nfs server:/home rw,nolock,local_lock=all", "warn", "nfs mounted with local_lock=all: locks do not"),
        ("rw - lustre mds:/work rw,localflock", "warn", "lustre mounted with localflock: locks do not exclude"),
        ("rw - lustre mds:/work rw,flock", "ok", "lustre: no mount option"),
        ("rw - fuse.sshfs server:/home rw,user_id=0", "warn", "fuse.sshfs: locks do not exclude other nodes"),
    ],
)
def test_locks_that_do_not_exclude_other_nodes_are_reported(
    mount: str, level: str, expected: str, tmp_path: Path
) -> None:
    device = tmp_path.stat().st_dev
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"1 0 9:9 / / rw - ext4 /dev/x rw\n2 1 {os.major(device)}:{os.minor(device)} / /m {mount}\n")
    check = locks(tmp_path, mountinfo)
    assert (check.level, bool(check.advice)) == (level, level == "warn")
    assert check.found.startswith(f"{tmp_path}: {expected}")
