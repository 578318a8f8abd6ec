"""The notebook, run in its environment: on a store that it makes, and on one with class names made to do harm."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from decodeonce.store.manifest import ImageClass
from tests.command import run
from tests.packages import is_fatal
from tests.store.signing import resign
from tests.stores import make_store, random_images
from tools import setup_env, setup_notebook

ROOT = Path(__file__).resolve().parent.parent
TWIN = ROOT / "examples" / "inspect_store.py"
NOTEBOOK = TWIN.with_suffix(".ipynb")
ALONE = "How fast it loads"  # the heading above which nothing but NumPy reads the store

pytestmark = pytest.mark.timeout(600)  # the environment is made by the first test that needs it


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the notebook's environment; without one the tests are skipped, with CI set they fail."""
    if Path(sys.prefix).resolve() != setup_env.VENV.resolve():
        pytest.skip("not the environment that make builds, which the notebook's shares")
    command = [sys.executable, "-m", "tools.setup_notebook"]
    made = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if made.returncode:
        (pytest.fail if is_fatal(os.environ) else pytest.skip)(made.stderr.strip())
    return setup_notebook.PYTHON


@pytest.fixture(autouse=True)
def _drawn_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def cells() -> list[dict[str, Any]]:
    return list(json.loads(NOTEBOOK.read_text())["cells"])


@pytest.mark.long
def test_notebook_and_twin_are_one(python: Path, tmp_path: Path) -> None:
    text = run(python.with_name("jupytext"), "--to", "py:percent", "--output", "-", NOTEBOOK, cwd=tmp_path)
    assert text == TWIN.read_text()


def test_the_notebook_holds_no_outputs() -> None:
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert len(code) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@pytest.mark.long
def test_the_environment_has_one_pil_and_it_is_the_stock_one(python: Path, tmp_path: Path) -> None:
    code = "from decodeonce.prep.pixels.versions import find_pillow as f; print(f().name, f().version, *f().installed)"
    name, version, *installed = run(python, "-c", code, cwd=tmp_path).split()
    assert [name] == installed == ["pillow"]
    assert f"\npillow=={version} " in (ROOT / "constraints.txt").read_text()


@pytest.mark.long
def test_all_that_the_environment_has_of_its_own_is_pinned(python: Path) -> None:
    lines = [line for pins in setup_notebook.PINS for line in pins.read_text().splitlines() if line[0] != "#"]
    pinned = {(canonicalize_name(pin.name), str(pin.specifier)) for pin in map(Requirement, lines)}
    [own] = setup_notebook.VENV.glob("lib/python3*/site-packages")
    has = {(canonicalize_name(dist.name), f"=={dist.version}") for dist in metadata.distributions(path=[str(own)])}
    assert {name for name, _ in has - pinned} <= {"pip", "setuptools"}
    assert len(has) > 20


@pytest.mark.long
def test_the_notebook_makes_a_store_looks_at_it_and_draws_its_rates(python: Path, tmp_path: Path) -> None:
    notebook = tmp_path / NOTEBOOK.name
    notebook.write_bytes(NOTEBOOK.read_bytes())
    run(python.with_name("jupyter-execute"), "--inplace", notebook, cwd=tmp_path, MPLBACKEND="", STORE="")
    assert (tmp_path / "sample.store" / "store.json").is_file()
    outputs = [output for cell in json.loads(notebook.read_text())["cells"] for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    printed = "".join("".join(output["text"]) for output in outputs if output.get("name") == "stdout")
    assert "pictures of [256, 256, 3] in 12 classes" in printed
    assert printed.count(" GB/s in batches of ") == 2 * 3 * 3  # threads, orders, sizes


@pytest.mark.long
def test_numpy_alone_looks_at_any_store(python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["$\\frac{1}{$", "\udcff\x1b[2J", "line\nbreak", "長い" * 99]
    monkeypatch.setattr("tests.stores.ImageClass", lambda name, _: ImageClass(names[int(name[5:])], ""))
    images = random_images(30, shape=(8, 6, 1))
    edges, kept = np.full((30, 2, 4), [1, 2, 5, 6], "<f4"), np.array([[1, 0], [0, -1], [-1, -1]] * 10, "<i4")
    columns = {"boxes": edges, "box_count": (kept >= 0).sum(axis=1).astype("<i4"), "box_labels": kept}
    make_store(tmp_path / "a.store", images, container="hdf5", shard_rows=7, classes=len(names), columns=columns)
    resign(tmp_path / "a.store", lambda facts: facts.update(box_classes=names[2:]))
    above = TWIN.read_text().partition(f"# ## {ALONE}")[0]
    seen = "import sys; assert not {'decodeonce', 'h5py', 'torch'} & set(sys.modules)\n"
    seen += "for number in plt.get_fignums(): plt.figure(number).savefig(f'{number}.png')\n"
    seen += "boxes = columns.pop('boxes'); print(boxes_of(0)); columns['boxes'] = boxes\n"  # a store without it
    seen += "print(json.dumps([boxes_of(row) for row in range(3)]))\n"
    seen += "print(json.dumps([class_name(row) for row in range(4)]))\n"
    seen += "print(json.dumps([picture(row).tolist() for row in range(30)]))\n"
    printed = run(python, "-W", "ignore:Glyph", "-c", above + seen, cwd=tmp_path, STORE="a.store").splitlines()
    assert np.array_equal(json.loads(printed[-1]), images)
    assert json.loads(printed[-2]) == ["$\\frac{1}{$", "??[2J", "line?break", "長い" * 11 + "長…"]
    nasty, box = "長い" * 11 + "長…", [1, 2, 5, 6]
    assert json.loads(printed[-3]) == [[[box, nasty], [box, "line?break"]], [[box, "line?break"]], []]
    assert printed[0] == "30 pictures of [8, 6, 1] in 4 classes"
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["1.png", "2.png"]
    mean = f"{images.mean():.1f}"
    assert printed[-4] == "[]"
    assert printed[-5].startswith(f"channel 0: mean {mean}, of all rows {mean}; ")
