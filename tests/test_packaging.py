"""Installation: pins, exactly one PIL, and imports between parts. See test_release.py for what is published."""

import ast
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.command import run
from tests.disks import small_disk
from tests.terminal import Terminal
from tools import check_machine, lock, setup_env, setup_oldest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
PARTS = ("cli", "loader", "prep", "store")


def pins() -> dict[str, set[str]]:
    """Return the pinned versions of each distribution, one per range of Pythons, from the constraints used here."""
    found: dict[str, set[str]] = {}
    oldest = Path(sys.prefix).resolve() == setup_oldest.VENV.resolve()
    for line in (setup_oldest.PINS if oldest else ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            pin = Requirement(line)
            found.setdefault(canonicalize_name(pin.name), set()).add(str(pin.specifier))
    return found


def installed_needs(name: str, extra: str = "") -> Iterator[str]:
    """Yield the installed requirements of a distribution. The level of the setup decides which ones are installed."""
    for need in map(Requirement, metadata.requires(name) or ()):
        wanted = need.marker is None or need.marker.evaluate({"extra": extra})
        if wanted and next(iter(metadata.distributions(name=need.name)), None):
            yield canonicalize_name(need.name)


def test_constraints_pin_every_development_package() -> None:
    assert {"pybind11", "pillow", "pillow-simd"} <= set(pins())  # at most two of these three are installed
    seen = {"decodeonce"}
    pending = {need for extra in ("parquet", *setup_env.LEVELS) for need in installed_needs("decodeonce", extra)} - seen
    assert "simplejpeg" in pending
    while pending:
        name = pending.pop()
        seen.add(name)
        pending |= set(installed_needs(name)) - seen
    assert seen - {"decodeonce"} <= set(pins())
    assert all(version.startswith("==") for versions in pins().values() for version in versions)


@pytest.mark.parametrize("version", lock.declared())
def test_constraints_pin_one_release_per_declared_python(version: str) -> None:
    here = {"python_version": version, "python_full_version": f"{version}.2", "extra": ""}
    lines = [line for line in lock.LOCK.read_text().splitlines() if not line.startswith("#")]
    needs = [need for need in map(Requirement, lines) if need.marker is None or need.marker.evaluate(here)]
    names = [canonicalize_name(need.name) for need in needs]
    assert len(names) == len(set(names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(line) for lines in (project["dependencies"], *extras.values()) for line in lines]
    wanted = [need for need in wanted if need.name != "decodeonce" and (not need.marker or need.marker.evaluate(here))]
    pinned = {canonicalize_name(need.name): next(iter(need.specifier)).version for need in needs}
    assert all(need.specifier.contains(pinned[canonicalize_name(need.name)]) for need in wanted)


def test_root_links_point_to_package_parts() -> None:
    if (ROOT / "PKG-INFO").exists():
        pytest.skip("an sdist does not contain the links")
    for part in PARTS:
        link = ROOT / part  # unpacking a zip turns the link into a text file with the target
        assert (os.readlink(link) if link.is_symlink() else link.read_text()) == f"src/decodeonce/{part}"
        assert (SRC / "decodeonce" / part / "__init__.py").is_file()


def installed_pils() -> list[metadata.Distribution]:
    return [dist for name in setup_env.PILS for dist in metadata.distributions(name=name)]


def test_exactly_one_pil_is_installed() -> None:
    from PIL import _imaging

    [pil] = installed_pils()
    assert _imaging.__file__ is not None
    imported_file = Path(_imaging.__file__)
    [recorded] = [file for file in pil.files or () if file.name == imported_file.name]
    assert Path(str(recorded.locate())).samefile(imported_file)
    assert recorded.hash is not None
    digest = hashlib.new(recorded.hash.mode, imported_file.read_bytes()).digest()
    assert recorded.hash.value == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def modules_after(code: str) -> set[str]:
    """Return the modules that a new Python process has loaded after running this code."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(run(sys.executable, "-c", script, cwd=ROOT / "tests").split())


def test_importing_package_loads_no_heavy_modules() -> None:
    heavy = {"numpy", "torch", "h5py", "PIL", "xxhash", "tqdm", "typer", "jinja2"}
    assert not modules_after("import decodeonce") & heavy


@pytest.mark.parametrize(
    ("part", "unloaded"),
    [
        ("store", {"torch", "PIL", "decodeonce.prep", "decodeonce.loader"}),
        ("loader", {"decodeonce.prep", "decodeonce.cli"}),
        # Pillow and simplejpeg included, so that `prep` can report that they are missing.
        ("prep", {"torch", "PIL", "simplejpeg", "pyarrow", "decodeonce.loader", "decodeonce.cli"}),
        ("cli", {"torch", "numpy", "PIL", "jinja2", "decodeonce.loader"}),
        ("augment", {"PIL", "decodeonce.prep", "decodeonce.cli"}),
        ("build", {"torch", "numpy", "decodeonce.prep", "decodeonce.loader"}),
        ("sources", {"torch", "numpy", "decodeonce.prep", "decodeonce.loader"}),
    ],
)
def test_importing_a_part_does_not_load_others(part: str, unloaded: set[str]) -> None:
    loaded = modules_after(f"import decodeonce.{part}")
    assert f"decodeonce.{part}" in loaded
    assert not loaded & unloaded


@pytest.mark.parametrize("name", ["__init__", "augment", "build", "sources", "store/__init__"])
def test_names_for_type_checkers_are_those_that_can_be_imported(name: str) -> None:
    tree = ast.parse((SRC / f"decodeonce/{name}.py").read_bytes())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    checked = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    module = import_module(f"decodeonce.{name}".replace("/", ".").removesuffix(".__init__"))
    assert module.__all__ == sorted(checked)
    assert all(getattr(module, one) for one in checked)


def test_public_modules_are_attributes_and_nothing_private_is_listed() -> None:
    code = "import decodeonce\nprint(*(n for n in dir(decodeonce) if n[0] != '_'), decodeonce.augment.RandomFlip(0.25))"
    names = {"augment", "build", "sources", "store", *import_module("decodeonce").__all__}
    assert run(sys.executable, "-c", code).split() == [*sorted(names), "RandomFlip(p=0.25)"]


def test_package_can_be_imported_from_a_zip(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", SRC)
    code = "import decodeonce\nfrom decodeonce import BuildError, open_store\nprint(decodeonce.__file__)"
    assert run(sys.executable, "-c", code, PYTHONPATH=archive).startswith(archive)


def test_importing_all_commands_loads_no_template_engine() -> None:
    loaded = modules_after("from decodeonce.cli.app import Prep\nfor make in Prep.lazy.values(): make()")
    assert "decodeonce.cli.report" in loaded
    assert not loaded & {"torch", "numpy", "PIL", "jinja2", "h5py", "simplejpeg"}


def copied_project(folder: Path) -> Path:
    """Copy what an installation reads before it starts pip."""
    shutil.copytree(ROOT / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_installation_on_small_disk_names_needed_size_first(tmp_path: Path) -> None:
    with small_disk(tmp_path, "10m") as disk:
        done = make(copied_project(disk), "env-demo")
        assert not (disk / ".venv").exists()
    assert done.stderr.startswith(f"setup: error: {disk}/.venv needs 1.2 GB of disk, downloads included, and 0.0 GB")
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("declared", "python", "expected"),
    [
        (">=3.11,<3.15", "3.9.18", "decodeonce needs Python 3.11 to 3.14, and this is 3.9.18. Run: make PYTHON="),
        (">=3.11,<3.15", "2.7.18", "3.11 to 3.14"),
        (">=3.11,<3.15", "3.15.0a1", "3.11 to 3.14"),
        (">=3.11,<3.15", "4.0.0", "3.11 to 3.14"),
        (">=3.11", "3.9.18", "3.11 or newer"),
    ],
)
def test_python_outside_declared_range_is_named(declared: str, python: str, expected: str) -> None:
    assert expected in check_machine.reason(f'[project]\nrequires-python = "{declared}"\n', python, "Linux")


def test_declared_pythons_are_accepted_on_linux_only() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for version in lock.declared():
        assert check_machine.reason(project, f"{version}.1", "Linux") == ""
        assert "Linux only, and this is Darwin" in check_machine.reason(project, f"{version}.1", "Darwin")


def test_make_names_unsupported_python_before_it_installs_anything(tmp_path: Path) -> None:
    """With a range that excludes this Python, and with an old Python if there is one."""
    project = copied_project(tmp_path) / "pyproject.toml"
    declared = re.sub(r"(?m)^requires-python = .*", 'requires-python = ">=3.8,<3.9"', project.read_text())
    project.write_text(declared)
    olds = [python for n in (6, 7, 8, 9) for python in (Path.home() / ".pyenv/versions").glob(f"3.{n}.*/bin/python3")]
    for python in [Path(sys.executable), *olds]:
        if "/3.8." not in str(python):
            done = make(tmp_path, f"PYTHON={python}", "env-demo")
            first, *rest = done.stderr.splitlines()
            assert first.startswith("setup: error: decodeonce needs Python 3.8 to 3.8, and this is 3.")
            assert len(rest) == 1  # of make
            assert not (tmp_path / ".venv").exists()


def test_pip_names_unsupported_python_before_it_resolves_requirements() -> None:
    """Old releases of pip would download torch first, so setup.py looks at the version as well."""
    declared = [tuple(map(int, version.split("."))) for version in lock.declared()]
    for version in ((3, declared[0][1] - 1), declared[0], declared[-1], (3, declared[-1][1] + 1)):
        code = f"import runpy, setuptools, sys; sys.version_info = {version}; sys.argv[1:] = ['--version']; "
        command = [sys.executable, "-c", f"{code}runpy.run_path('setup.py')"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        refused = done.stderr.startswith(f"decodeonce needs Python {lock.declared()[0]} to {lock.declared()[-1]}, and")
        assert refused == (version not in declared), done.stderr


def test_interrupted_installation_prints_one_line(tmp_path: Path) -> None:
    """While .venv is created, which is before anything is downloaded."""
    with Terminal("make", f"PYTHON={sys.executable}", "env-demo", cwd=copied_project(tmp_path)) as terminal:
        terminal.read_until("1/3 .venv")
        terminal.write(b"\x03")
        after = terminal.read_until(None)
    lines = [line for line in after.replace("^C", "").replace("\r", "\n").splitlines() if line.strip("\x1b[K")]
    found = [line for line in lines if "make: ***" not in line]
    assert found == ["setup: stopped; run the same command again to resume"]


def test_failed_command_is_named() -> None:
    with pytest.raises(setup_env.SetupError, match=r"raise SystemExit\(3\) failed \(exit 3\); its output is above"):
        setup_env.run(sys.executable, "-c", "raise SystemExit(3)")


def test_make_help_lists_every_public_target_in_80_columns() -> None:
    done = make(ROOT, "help")
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    [phony] = re.findall(r"^\.PHONY: (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)
    targets = {name for name in phony.split() if name not in ("\\", "env-demo", "env-test", "env-dev")}
    assert {line.split()[1] for line in lines} == targets
