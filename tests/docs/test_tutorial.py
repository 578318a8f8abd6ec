"""The tutorial works as written: in an empty folder, its commands run and print what the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import run
from tests.docs.pages import ROOT, SHELL, blocks

PAGE = ROOT / "docs" / "start" / "tutorial.md"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
TRAIN = "python train.py\n"
STEPS_LEFT = re.compile(r"(\d+) of (\d+) steps left")
# A loss and the speed of a build differ from run to run.
VARIES = re.compile(r"\d+\.\d{3}$|\bwritten in [\w ]+, [\d,]+ images/s", re.MULTILINE)
# A line of output that the page shows, but no command prints.
TREE_LINE = re.compile(r"^(photos/|  (cat|dog)/ .*)$")


def train_until(folder: Path, line: re.Pattern[str]) -> str:
    """Run train.py, press Ctrl-C when it has printed a line, and return its output without the traceback."""
    command, env = [sys.executable, "-u", "train.py"], os.environ | {"PATH": PATH}
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        output = ""
        for printed in process.stdout:
            output += printed.decode()
            if line.match(printed.decode()):
                process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT, output
    return output


def assert_shown(shown: str, printed: str) -> None:
    """Check that a command printed the lines of a block in this order. The block may leave lines out (...)."""
    rest = iter(VARIES.sub("VARIES", printed).splitlines())
    for line in VARIES.sub("VARIES", shown).splitlines():
        if line != "...":
            assert line in rest, f"{line!r} is on the page, but was not printed:\n{printed}"


@pytest.mark.long
def test_commands_of_tutorial_print_what_it_shows(tmp_path: Path) -> None:
    printed, shown = "", 0
    for block in blocks(PAGE):
        if block.text == TRAIN:
            continue  # it is run with the output that the page shows
        if block.language == "python":
            (tmp_path / "train.py").write_text(block.text)
            if "Loader" not in block.text:
                run(sys.executable, "train.py", cwd=tmp_path)
        elif block.language in SHELL:
            printed = run("bash", "-ec", block.text, cwd=tmp_path, PATH=PATH)
        elif block.text.endswith("^C\n"):
            printed = train_until(tmp_path, re.compile("epoch 0, (10|5|0) "))
            assert_shown(block.text.removesuffix("^C\n"), printed)
        elif not TREE_LINE.match(block.text.splitlines()[0]):
            if block.text.startswith("resuming"):
                [left, steps] = STEPS_LEFT.findall(printed)[-1]  # Ctrl-C may come a few steps later
                printed = run(sys.executable, "train.py", cwd=tmp_path)
                assert printed.startswith(f"resuming epoch 0, {left} of {steps} steps left\n")
                assert_shown(block.text.partition("\n")[2] if left == "10" else "", printed)
            else:
                assert_shown(block.text, printed)
            shown += 1
    assert shown == 4
    assert "epoch 1, 0 of 18 steps left" in printed
