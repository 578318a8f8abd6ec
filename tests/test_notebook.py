"""The notebook, run in its own environment: on a store that it builds, and on one with hostile class names."""

import base64
import json
import shutil
import subprocess
import sys
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from decodeonce import open_store
from decodeonce.store.layout import PixelsName
from decodeonce.store.manifest import ImageClass
from tests.command import run
from tests.packages import give_up
from tests.store.signing import resign
from tests.stores import make_store, random_images
from tools import setup_env, setup_notebook

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "inspect_store.ipynb"
FIRST_LOADER_HEADING = "## Loading speed"  # the cells above this heading read the store with NumPy only

pytestmark = pytest.mark.timeout(600)  # the first test that needs the environment creates it


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python of the notebook's environment. If it cannot be created, skip the test, or let it fail in CI."""
    if Path(sys.prefix).resolve() != setup_env.VENV.resolve():
        pytest.skip("not run in .venv, whose packages the notebook's environment links")
    command = [sys.executable, "-m", "tools.setup_notebook"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        give_up(done.stderr.strip())
    return setup_notebook.PYTHON


@pytest.fixture(autouse=True)
def _plot_without_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def cells() -> list[dict[str, Any]]:
    return list(json.loads(NOTEBOOK.read_text())["cells"])


def test_notebook_has_no_outputs() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.release
def test_notebook_environment_has_stock_pillow_and_pinned_packages(python: Path, tmp_path: Path) -> None:
    code = "from decodeonce.prep.pixels.versions import find_pillow as f; print(f().name, f().version, *f().installed)"
    name, version, *installed = run(python, "-c", code, cwd=tmp_path).split()
    assert [name] == installed == ["pillow"]
    assert f"\npillow=={version} " in (ROOT / "constraints.txt").read_text()
    lines = [line for pins in setup_notebook.PINS for line in pins.read_text().splitlines() if line[0] != "#"]
    pinned = {(canonicalize_name(pin.name), str(pin.specifier)) for pin in map(Requirement, lines)}
    [own] = setup_notebook.VENV.glob("lib/python3*/site-packages")
    has = {(canonicalize_name(dist.name), f"=={dist.version}") for dist in metadata.distributions(path=[str(own)])}
    assert {name for name, _ in has - pinned} <= {"pip", "setuptools"}
    assert len(has) > 20


@pytest.mark.release
def test_notebook_builds_a_store_and_plots_it(python: Path, tmp_path: Path) -> None:
    notebook = tmp_path / NOTEBOOK.name
    for name in (NOTEBOOK.name, "sample.py", "sample.toml"):  # the notebook runs in its folder
        shutil.copy(NOTEBOOK.with_name(name), tmp_path)
    run(python.with_name("jupyter-execute"), "--inplace", notebook, cwd=tmp_path, MPLBACKEND="", STORE="")
    assert (tmp_path / "sample.store" / "store.json").is_file()
    outputs = [output for cell in json.loads(notebook.read_text())["cells"] for output in cell.get("outputs", ())]
    errors = [line for output in outputs if output.get("name") == "stderr" for line in output["text"]]
    assert [line for line in errors if " images/s, " not in line] == []  # a slow machine sees progress
    figures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(figures) == 3
    assert all(base64.b64decode(figure).startswith(b"\x89PNG") for figure in figures)
    printed = "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")
    assert "images of [256, 256, 3] in 12 classes" in printed
    assert printed.count(" GB/s in batches of ") == 2 * 3 * 3  # threads, orders, sizes


@pytest.mark.release
def test_first_part_of_notebook_needs_only_numpy(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["$\\frac{1}{$", "\udcff\x1b[2J", "line\nbreak", "長い" * 99]
    monkeypatch.setattr("tests.stores.ImageClass", lambda name, _: ImageClass(names[int(name[5:])], ""))
    images = random_images(30, shape=(8, 6, 1))
    edges, kept = np.full((30, 2, 4), [1, 2, 5, 6], "<f4"), np.array([[1, 0], [0, -1], [-1, -1]] * 10, "<i4")
    columns = {"boxes": edges, "box_count": (kept >= 0).sum(axis=1).astype("<i4"), "box_labels": kept}
    make_store(tmp_path / "a.store", images, container="hdf5", shard_rows=7, classes=len(names), columns=columns)
    resign(tmp_path / "a.store", lambda facts: facts.update(box_classes=names[2:]))
    first = takewhile(lambda cell: not cell["source"][0].startswith(FIRST_LOADER_HEADING), cells())
    above = "\n".join("".join(cell["source"]) for cell in first if cell["cell_type"] == "code") + "\n"
    check = "import sys; assert not {'decodeonce', 'h5py', 'torch'} & set(sys.modules)\n"
    check += "for number in plt.get_fignums(): plt.figure(number).savefig(f'{number}.png')\n"
    check += "boxes = columns.pop('boxes'); print(boxes_of(0)); columns['boxes'] = boxes\n"  # a store without boxes
    check += "print(json.dumps([boxes_of(row) for row in range(3)]))\n"
    check += "print(json.dumps([class_name(row) for row in range(4)]))\n"
    check += "print(json.dumps([image_of(row).tolist() for row in range(30)]))\n"
    printed = run(python, "-W", "ignore:Glyph", "-c", above + check, cwd=tmp_path, STORE="a.store").splitlines()
    assert np.array_equal(json.loads(printed[-1]), images)
    rows = f"{above}print(json.dumps([image_of(row).tolist() for row in range(30)]))"
    shapes: dict[PixelsName, tuple[int, int, int]] = {"yuv420": (8, 6, 3), "bc4": (8, 16, 3)}
    for form, shape in shapes.items():
        packed = make_store(tmp_path / form, random_images(30, shape=shape), shard_rows=7, pixels=form)
        lines = run(python, "-c", rows, STORE=str(packed))
        assert np.array_equal(json.loads(lines.splitlines()[-1]), open_store(packed).images[:])
    assert json.loads(printed[-2]) == ["$\\frac{1}{$", "??[2J", "line?break", "長い" * 11 + "長…"]
    long_name, box = "長い" * 11 + "長…", [1, 2, 5, 6]
    assert json.loads(printed[-3]) == [[[box, long_name], [box, "line?break"]], [[box, "line?break"]], []]
    assert printed[0] == "30 images of [8, 6, 1] in 4 classes"
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["1.png", "2.png"]
    mean = f"{images.mean():.1f}"
    assert printed[-4] == "[]"
    assert printed[-5].startswith(f"channel 0: mean {mean} (all rows: {mean}), ")
