"""The archives for a package index: contents, metadata, README page, and installs of them in new environments."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

import decodeonce
from tests.command import run
from tests.docs.test_links import BADGE
from tests.packages import NOT_DEV
from tests.stores import make_store, random_images
from tools import setup_env

if not find_spec("readme_renderer"):
    pytest.skip(NOT_DEV.format("readme-renderer"), allow_module_level=True)

from markdown_it import MarkdownIt
from readme_renderer.clean import clean

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
LINKS = ("cli", "loader", "prep", "store")
# Files that are often in a working folder and must not be packaged.
UNTRACKED = (
    "build/demo/__init__.py",
    "dist/old.whl",
    ".venv/lib/module.py",
    "shared/image.JPEG",
    "examples/sample.store/images-00000.npy",
    "tests/__pycache__/a.pyc",
)
GENERATED = ("PKG-INFO", "setup.cfg", "src/decodeonce.egg-info/")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
PLATFORMS = [(system, machine) for system in ("linux", "darwin") for machine in ("x86_64", "aarch64")]
USER = """
from decodeonce import Batch, Loader, open_store

def rows(path: str) -> int:
    loader = Loader(path, batch_size=4)
    steps: int = len(loader)
    batches: list[Batch] = list(loader)
    Loader(path)  # type: ignore[call-arg]
    return steps + len(open_store(path)) + sum(batch.valid for batch in batches)
"""


class Built(NamedTuple):
    """A copy of the sources, and the archives built from it."""

    tree: Path
    sources: set[str]  # names of the source files in it, without the untracked files
    sdist: Path
    wheel: Path  # built from the sdist


def source_names() -> list[str]:
    """Return all files that git tracks or would add; in an unpacked sdist, all files that it came with."""
    if not (ROOT / ".git").exists():
        lines = (SRC / "decodeonce.egg-info" / "SOURCES.txt").read_text().splitlines()
        return [name for name in lines if not name.startswith(GENERATED)]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the archives from a copy of the tree with untracked files in it."""
    tree, out = tmp_path_factory.mktemp("release") / "tree", tmp_path_factory.mktemp("dist")
    sources = set()
    for name in source_names():
        if (ROOT / name).is_file() and name not in LINKS:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tree / name)
            sources.add(name)
    for part in LINKS:
        (tree / part).symlink_to(f"src/decodeonce/{part}")
    for name in UNTRACKED:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"not packaged")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", out, tree)
    [sdist], [wheel] = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(tree, sources, sdist, wheel)


def wheel_contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.fixture(scope="module")
def facts(built: Built) -> Message:
    """Return the wheel's metadata."""
    [text] = [data for name, data in wheel_contents(built.wheel).items() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(text.decode())


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the sdist as pip does."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(built.sdist) as archive:
        assert all(member.isfile() or member.isdir() for member in archive), "some systems cannot unpack links"
        archive.extractall(folder)
    return folder / f"decodeonce-{decodeonce.__version__}"


def test_sdist_contains_exactly_the_sources(built: Built, unpacked: Path) -> None:
    packed = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    expected = {name for name in built.sources if name in (".dockerignore", ".relint.yml") or not name.startswith(".")}
    assert {name for name in packed if not name.startswith(GENERATED)} == expected
    for name in expected:
        assert (unpacked / name).read_bytes() == (built.tree / name).read_bytes(), name


def test_wheel_contains_exactly_the_package(built: Built) -> None:
    packaged = {f"src/{name}" for name in wheel_contents(built.wheel) if ".dist-info/" not in name}
    assert packaged == {name for name in built.sources if name.startswith("src/")}


def test_wheel_has_command_and_licenses(built: Built) -> None:
    contents = {name.partition(".dist-info/")[2]: data for name, data in wheel_contents(built.wheel).items()}
    found = contents["entry_points.txt"].decode().split("\n")[:3]
    assert found == ["[console_scripts]", "decodeonce = decodeonce.cli:main", "prep = decodeonce.cli:main"]
    for name in ("LICENSE", "LICENSE.WordNet"):
        assert contents[f"licenses/{name}"] == (ROOT / name).read_bytes()


def test_version_is_the_same_everywhere(built: Built, facts: Message, unpacked: Path) -> None:
    assert facts["Version"] == decodeonce.__version__
    assert Parser().parsestr((unpacked / "PKG-INFO").read_text())["Version"] == decodeonce.__version__
    assert built.sdist.name == f"decodeonce-{decodeonce.__version__}.tar.gz"
    assert run(sys.executable, "-m", "decodeonce.cli", "--version") == f"prep {decodeonce.__version__}\n"
    first, newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[:2]
    assert (first, newest) == ("Unreleased", decodeonce.__version__.partition(".dev")[0])
    assert f"\nversion: {newest}\n" in (ROOT / "CITATION.cff").read_text()


def needs(facts: Message, extra: str, system: str, machine: str) -> set[str]:
    """Return the requirements of an install with this extra ("" for none) on such a machine."""
    environment = {"extra": extra, "sys_platform": system, "platform_machine": machine, "python_version": "3.11"}
    found = [Requirement(line) for line in facts.get_all("Requires-Dist") or []]
    return {need.name for need in found if need.marker is None or need.marker.evaluate(environment)}


@pytest.mark.parametrize(("system", "machine"), PLATFORMS)
def test_install_requires_at_most_one_pil(facts: Message, system: str, machine: str) -> None:
    plain = needs(facts, "", system, machine)
    assert plain == {"numpy", "torch", "h5py", "typer", "tqdm", "xxhash", "jinja2", "bracex"}
    best = "pillow-simd" if (system, machine) == ("linux", "x86_64") else "pillow"
    assert needs(facts, "prep-simd", system, machine) - plain == {"simplejpeg", best}
    assert needs(facts, "prep", system, machine) - plain == {"simplejpeg", "pillow"}
    assert needs(facts, "parquet", system, machine) - plain == {"pyarrow"}
    assert not needs(facts, "dev", system, machine) & {"simplejpeg", "pillow-simd", "pillow"}


def test_twine_accepts_both_archives(built: Built) -> None:
    output = run(sys.executable, "-m", "twine", "check", "--strict", built.sdist, built.wheel)
    assert output.count("PASSED") == 2, output


def test_readme_on_index_has_no_broken_links(facts: Message, unpacked: Path) -> None:
    text, readme = str(facts.get_payload()), (ROOT / "README.md").read_text()
    assert facts["Description-Content-Type"] == "text/markdown"
    page = clean(MarkdownIt("commonmark").enable("table").render(text))  # allows only the HTML that the index allows
    assert page is not None
    assert (page.count("<table>"), page.count("<pre>")) == (readme.count("\n|---"), len(FENCE.findall(readme)))
    assert not [target for target in re.findall(r'href="([^"]*)"', page) if not target.startswith("https://")]
    targets = re.findall(r"(!?)\[[^]]+\]\((?!https?:)([^)#]+)", readme)
    assert len(targets) > 10
    for image, target in targets:
        assert (target in page) == (not image)
        assert (unpacked / target).is_file() or target.startswith(BADGE), target
    assert "![" in readme
    assert "![" not in text
    assert FENCE.findall(text) == FENCE.findall(readme)


def new_venv(folder: Path) -> Path:
    """Create an environment and return its Python."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, *what: object) -> None:
    """Run `pip install` with the pinned packages in the environment of this Python."""
    pins = str(ROOT / "constraints.txt")
    run(
        *(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what),
        cwd=python.parent,
        PIP_CONSTRAINT=pins,
    )


def check_install(python: Path, scratch: Path) -> None:
    """Use the installed command and package on a store of nine rows, outside the sources."""
    store = make_store(scratch / "a.store", random_images(9))
    prep = python.with_name("prep")
    for name in ("prep", "decodeonce"):
        assert run(python.with_name(name), "--version", cwd=scratch) == f"{name} {decodeonce.__version__}\n"
        assert f"Usage: {name}" in run(python.with_name(name), "--help", cwd=scratch)
    assert decodeonce.__version__ in run(prep, "doctor", cwd=scratch)
    assert '"ok": true' in run(prep, "verify", "--json", store, cwd=scratch)
    code = (
        "import sys, decodeonce; s = decodeonce.open_store(sys.argv[1]);"
        "print(decodeonce.__file__, len(s), sum(b.valid for b in decodeonce.Loader(s, batch_size=2, tail='keep')))"
    )
    module, *numbers = run(python, "-Ic", code, store, cwd=scratch).split()
    assert Path(module).is_relative_to(python.parent.parent)
    assert numbers == ["9", "9"]


def check_types(python: Path, scratch: Path) -> None:
    """Check that mypy uses the types of the installed package: it accepts a right call and reports a wrong one."""
    (scratch / "user.py").write_text(USER)
    (scratch / "mypy.ini").write_text("[mypy]\nstrict = true\nwarn_unused_ignores = true\n")
    run(sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", scratch, "user.py", cwd=scratch)


@pytest.mark.release
@pytest.mark.timeout(600)
def test_example_package_adds_a_source_to_the_installed_wheel(built: Built, tmp_path: Path) -> None:
    python = new_venv(tmp_path / "venv")
    install(python, "--no-deps", "--no-index", built.wheel)
    [own] = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (own / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    prep = python.with_name("prep")
    assert "lmdb" not in run(prep, "build", "--help", cwd=tmp_path)
    install(python, built.tree / "examples" / "lmdb_source")
    assert re.search(r"lmdb +Added by the package decodeonce.lmdb", run(prep, "build", "--help", cwd=tmp_path))
    assert "Read LMDB databases of images" in " ".join(run(prep, "build", "lmdb", "--help", cwd=tmp_path).split())


@pytest.mark.release
@pytest.mark.parametrize(("kind", "extra"), [("wheel", "prep"), ("sdist", "prep-simd")])
def test_archive_installs_with_dependencies_and_builds_store(
    built: Built, tmp_path: Path, kind: str, extra: str
) -> None:
    python = new_venv(tmp_path / "venv")
    install(python, f"decodeonce[{extra},parquet] @ {getattr(built, kind).as_uri()}")
    check_install(python, tmp_path)
    check_types(python, tmp_path)
    prep = python.with_name("prep")
    run(python, ROOT / "examples" / "sample.py", "tree", "--count", 60, cwd=tmp_path)
    run(prep, "build", "imagenet", "tree", "b.store", "--max-bad", "10%", cwd=tmp_path)
    assert '"ok": true' in run(prep, "verify", "--json", "b.store", cwd=tmp_path)
    found = run(prep, "doctor", cwd=tmp_path)
    assert ("pillow-simd" in found) == (extra == "prep-simd" and setup_env.BEST_PIL == "pillow-simd")
    assert "each other" not in found


@pytest.mark.release
def test_tests_pass_in_unpacked_sdist(unpacked: Path) -> None:
    python = ("env", "ALLOW_SKIPS=1", f"PYTHONPATH={unpacked / 'src'}", sys.executable)
    assert run(*python, "-c", "import decodeonce as d; print(d.__file__)").startswith(str(unpacked))
    output = run(
        *python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/store", "tests/test_packaging.py", cwd=unpacked
    )
    assert " passed" in output
