"""No exit status of a user's code is the status of a build, and no sample is lost if that code ends a process."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.command import assert_fails, prep_process
from tests.images import jpeg, make_tree

COUNT = 300  # several processes list so many samples
DATASET = """
import os, sys
from pathlib import Path
from subprocess import CompletedProcess
{at_import}

class Images:
    def __len__(self):
        return {count}

    def __getitem__(self, index):
        if index == 200:
            {at_sample}
        return Path("image.jpg").read_bytes(), 0

def images():
    {at_call}
    return Images()
"""


def build(folder: Path, **code: str) -> CompletedProcess[str]:
    (folder / "image.jpg").write_bytes(jpeg(30, 20))
    texts = {"at_import": "", "at_sample": "pass", "at_call": "pass", **code}
    (folder / "mine.py").write_text(DATASET.format(count=COUNT, **texts))
    return prep_process("build", "dataset", "mine:images", "out", "--size", 8, "--workers", 1, cwd=folder)


@pytest.mark.parametrize("status", [0, 3])
def test_dataset_that_exits_rejects_only_its_sample(tmp_path: Path, status: int) -> None:
    done = build(tmp_path, at_sample=f"sys.exit({status})")
    assert (done.returncode, "299 rows" in done.stdout) == (0, True), done.stderr
    assert (tmp_path / "out/rejects.tsv").read_text().endswith(f"SystemExit: {status}\trejected\n")


def test_dataset_that_ends_its_process_stops_the_build(tmp_path: Path) -> None:
    done = build(tmp_path, at_sample="os._exit(0)")
    assert (done.returncode, "lists the dataset ended early (exit status 0)" in done.stderr) == (1, True)
    assert not (tmp_path / "out/store.json").exists()


@pytest.mark.parametrize("where", ["at_import", "at_call"])
def test_module_or_function_that_exits_is_named(tmp_path: Path, where: str) -> None:
    done = build(tmp_path, **{where: "sys.exit(0)"})
    assert_fails(done, 1, "raised SystemExit: 0; reproduce it with: python -c 'import mine")


def test_map_that_exits_rejects_its_image(tmp_path: Path) -> None:
    make_tree(tmp_path / "src")
    (tmp_path / "maps.py").write_text(
        "import sys\ndef once(pixels, sample):\n    return sys.exit(3) if sample.label == 1 else pixels\n"
    )
    flags = ("--size", 8, "--workers", 1, "--map", "maps:once", "--max-bad", "100%")
    done = prep_process("build", "imagenet", "src", "out", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "maps:once: SystemExit: 3\trejected" in (tmp_path / "out/rejects.tsv").read_text()
