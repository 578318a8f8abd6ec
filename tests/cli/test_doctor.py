"""`prep doctor` in this environment and in damaged ones."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decodeonce.cli import doctor
from decodeonce.cli.doctor import Finding
from decodeonce.prep.building import free_space
from decodeonce.prep.building.free_space import Quota, Storage
from decodeonce.prep.pixels.versions import Pillow
from tests.command import prep_process
from tests.disks import small_disk

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
    assert [check["name"] for check in facts["checks"]] == [*doctor.CHECKS, "file system"]
    assert finding_of(facts, "pillow")[1].startswith("pillow")
    assert finding_of(facts, "file system")[1].startswith(f"{os.getcwd()}: ")


def test_broken_environment_is_bad_with_advice(site: Path, tmp_path: Path) -> None:
    """Both Pillow and pillow-simd, the imported one without its library, a broken torch, and an impossible rank."""
    (site / "PIL").mkdir()
    (site / "PIL/__init__.py").touch()
    (site / "PIL/features.py").write_text("raise ImportError('no PIL._imaging')\n")
    install(site, "pillow", "12.0.0")
    install(site, "pillow-simd", "12.0.0.post1")
    (tmp_path / "torch.py").write_text("raise ImportError('of this folder')\n")  # must not be imported
    code, facts = run_doctor(cwd=tmp_path, PYTHONPATH=site, RANK=5, WORLD_SIZE=2)
    assert (code, facts["ok"]) == (1, False)
    both = "pillow-simd 12.0.0.post1 and pillow 12.0.0 are both installed and overwrite each other"
    level, found, advice = finding_of(facts, "pillow")
    assert (level, found) == ("bad", both)
    assert advice.startswith('uninstall both, install one: see "pillow-simd or Pillow" in docs/start/install.md')
    level, found, advice = finding_of(facts, "torch")
    seen = (level, found.partition(", ")[2])
    assert seen == ("bad", "import fails: ImportError: libcudart.so.13: cannot open shared object file")
    assert advice.endswith(doctor.TORCH_PAGE)
    impossible = "RANK is 5 and WORLD_SIZE 2, expected 0 <= RANK < WORLD_SIZE"
    assert finding_of(facts, "rank")[:2] == ("bad", f"unknown: {impossible}")
    assert finding_of(facts, "task") == ("bad", "unknown", f"pass --task I --tasks N to prep work: {impossible}")
    assert f"pillow: {both}: uninstall both" in " ".join(facts["problems"])


@pytest.mark.parametrize(
    ("live", "level", "expected"),
    [
        (Pillow("pillow-simd", "12", "SSE4", ("pillow-simd",)), "warn", "pillow-simd 12, SSE4"),
        (Pillow("pillow-simd", "12", "AVX2", ("pillow-simd",)), "ok", "pillow-simd 12, AVX2"),
        (Pillow("pillow", "12", "no SIMD", ("pillow",)), "ok", "pillow 12, no SIMD"),
        (Pillow("", "", "", ("pillow-simd",)), "bad", "the files of pillow-simd are missing; "),
        (Pillow("", "", "", ()), "warn", "not installed; `prep build` needs it"),
    ],
)
def test_pillow_is_checked(live: Pillow, level: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodeonce.prep.pixels.versions.find_pillow", lambda: live)
    monkeypatch.setattr("PIL.features.check", lambda name: True)  # the installed pillow-simd may lack formats
    check = doctor.pillow()
    assert (check.level, check.found.startswith(expected)) == (level, True)
    assert check.advice.endswith("" if level == "ok" else doctor.PIL_ADVICE)


def test_missing_formats_are_reported_and_the_install_page_has_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.features.check", lambda name: name != "webp")
    check = doctor.pillow()
    assert (check.level, check.found.partition(", built ")[2]) == ("warn", "without WebP: such images are rejected")
    page = (Path(__file__).resolve().parents[2] / "docs/start/install.md").read_text()
    assert "## pillow-simd or Pillow\n" in page
    assert all(package in page for package in ("libwebp-dev", "libtiff-dev", "libwebp-devel", "libtiff-devel"))


def test_missing_package_or_one_with_failing_import_is_bad(site: Path) -> None:
    assert doctor.package("no-such-package") == Finding("not installed", "pip install no-such-package", bad=True)
    (site / "numpy.py").write_text("raise ImportError('no libgfortran')\n")
    (site / "xxhash.py").write_text("(\n")
    code, facts = run_doctor(PYTHONPATH=site)
    assert code == 1
    assert finding_of(facts, "numpy")[1].endswith(", import fails: no libgfortran")
    assert finding_of(facts, "xxhash")[0] == "bad"
    assert finding_of(facts, "file system")[:2] == ("bad", "cannot be checked: no libgfortran")
    assert finding_of(facts, "cores")[0] in ("ok", "warn")


def test_torch_that_prints_or_exits_is_understood(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setattr(doctor, "gpus_of_machine", lambda: "")
    for code, level, expected in (
        ("atexit.register(os.write, 1, b'\\xff')", "ok", "9.9: CPU only"),
        ("os._exit(0)", "bad", "import fails: exit status 0"),
        ("os.write(2, b'\\xff'), os._exit(1)", "bad", "import fails: \\xff"),
    ):
        (site / "torch.py").write_text(f"import atexit, os\n__version__ = '9.9'\n{code}\n")
        found = doctor.torch()
        assert (found.level, expected in found.found) == (level, True), found
    monkeypatch.setattr(doctor, "TORCH_SECONDS", 0)
    assert doctor.torch().found.endswith(", its import did not end within 0 s")


def test_limits_are_reported(site: Path) -> None:
    limits = ("prlimit", f"--as={8 << 30}", "taskset", "-c", "0")
    if not shutil.which("prlimit") or 0 not in os.sched_getaffinity(0):
        pytest.skip("prlimit(1) is missing, or core 0 is not usable")
    _, facts = run_doctor(*limits, PYTHONPATH=site)
    level, found, advice = finding_of(facts, "memory")
    assert (level, found.endswith("ulimit -v 8.59 GB"), advice.partition(";")[0]) == (
        "warn",
        True,
        "run: ulimit -v unlimited",
    )
    assert finding_of(facts, "torch")[2].startswith('check "memory", then reinstall torch')
    whole = os.cpu_count() or 1
    level, found, _ = finding_of(facts, "cores")
    assert (level, found.partition(",")[0]) == ("warn" if whole > 1 else "ok", f"1 of {whole} usable (affinity 1")


def test_doctor_prints_one_line_per_check(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    result = prep_process("doctor", tmp_path, "/dev/shm")
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    width = lines[0].index("3.")
    assert {line[:6] for line in lines[:-1]} - {"warn  "} == {"ok    ", "bad   ", "      "}
    line_of = {line[6:width].strip(): line for line in lines[:-1]}
    assert line_of["rank"].endswith("rank 1 of 2 (PMI)")
    assert line_of["task"].endswith("task 1 of 2 (PMI)")
    systems = [line[width:] for line in lines if line.startswith("ok    file system")]
    assert [system.partition(": ")[0] for system in systems] == [str(tmp_path), "/dev/shm"]
    assert lines[-1].endswith(" 1 bad")
    assert list(tmp_path.iterdir()) == [site]


TOO_OLD = "/torch/cuda.py:9: UserWarning: CUDA: K80 is too old\n  more\n"


@pytest.mark.parametrize(
    ("devices", "stderr", "gpus", "level", "expected"),
    [
        ([], "", "", "ok", "2.9: CPU only, no GPU found"),
        (["H200", "H200"], "", "NVIDIA GPUs", "ok", "2.9: 2 x H200"),
        (["K80"], TOO_OLD, "NVIDIA GPUs", "warn", "1 x K80"),
        ([], "", "AMD GPUs", "warn", "2.9: cannot use the AMD GPUs of this machine"),
        ([], TOO_OLD, "NVIDIA GPUs", "warn", "cannot use the NVIDIA GPUs of this machine: CUDA: K80 is too old"),
    ],
)
def test_devices_of_torch_are_checked(devices: list[str], stderr: str, gpus: str, level: str, expected: str) -> None:
    check = doctor.torch_check("2.9", devices, stderr, gpus)
    assert (check.level, check.found[-len(expected) :]) == (level, expected)
    assert bool(check.advice) == (level != "ok")


def test_gpus_are_found_by_their_device_files(tmp_path: Path) -> None:
    for file, found in (("none", ""), ("nvidiactl", ""), ("kfd", "AMD GPUs"), ("nvidia1", "NVIDIA GPUs")):
        (tmp_path / file).touch()
        assert doctor.gpus_of_machine(tmp_path) == found


def test_free_space_counts_every_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = (Quota("user 5", 10**11, None), Quota("group 7", 10**8, None))
    storages = [Storage(tmp_path, "Lustre", 10**12, None, quotas[:number]) for number in (2, 1)]
    monkeypatch.setattr(free_space, "find_storage", lambda path: storages.pop())
    roomy, full = doctor.file_system(tmp_path), doctor.file_system(tmp_path)
    found = f"{tmp_path}: Lustre, 1000.00 GB free; the quota of user 5 leaves 100.00 GB and any number of files"
    assert (roomy, full.level) == (Finding(found), "warn")


def test_unreachable_path_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path) -> Storage:
        raise OSError(errno.ESTALE, "Stale file handle")

    (tmp_path / "loop").symlink_to("loop")
    assert doctor.file_system(tmp_path / "loop/x").found.startswith(f"{tmp_path}: ")
    monkeypatch.setattr(free_space, "find_storage", stale)
    found = doctor.file_system(tmp_path)
    assert (found.level, found.found) == ("bad", f"{tmp_path}: Stale file handle")


def test_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with small_disk(tmp_path, "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        found = doctor.file_system(disk)
    assert (found.level, found.advice) == ("warn", "stores in it can only be read")
    assert found.found.endswith(" free; not writable")
