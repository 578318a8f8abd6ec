"""The tutorial works as written: in an empty folder, its commands run and print what the page shows.

Then the commands of the pages that use its store run in the same folder.
"""

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
HOW_TO = ROOT / "docs" / "how-to"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
TRAIN = "python train.py\n"
# A loss, an accuracy and the speed of a build differ from run to run, and so does the moment of Ctrl-C.
VARIES = re.compile(
    r"\b\d+\.\d{3}\b|\d+%|\bwritten in [\w ]+, [\d,]+ images/s|^epoch \d+:|^resuming epoch.*", re.MULTILINE
)
RESULT = re.compile(r"^epoch (\d+): loss ([\d.]+), (\d+)% of ", re.MULTILINE)
INTERRUPTED = "^C\n"
# A line of output that the page shows, but no command prints.
TREE_LINE = re.compile(r"^(photos/|  (cat|dog)/ .*)$")


def train_until(folder: Path, line: str) -> str:
    """Run train.py, press Ctrl-C when it has printed a line that begins so, and return both outputs."""
    command, env = [sys.executable, "-u", "train.py"], os.environ | {"PATH": PATH}
    output = ""
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for printed in process.stdout:
            output += printed.decode()
            if printed.decode().startswith(line):
                process.send_signal(signal.SIGINT)
        assert process.wait() == 1, output
    return output


def assert_shown(shown: str, printed: str) -> None:
    """Check that a command printed the lines of a block in this order. The block may leave lines out (...)."""
    rest = iter(VARIES.sub("VARIES", printed).splitlines())
    for line in VARIES.sub("VARIES", shown).splitlines():
        if line != "...":
            assert line in rest, f"{line!r} is on the page, but was not printed:\n{printed}"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_commands_of_tutorial_print_what_it_shows(tmp_path: Path) -> None:
    printed, shown = "", []
    for block in blocks(PAGE):
        if block.language == "python":
            (tmp_path / "train.py").write_text(block.text)
            if "Loader" not in block.text:
                run(sys.executable, "train.py", cwd=tmp_path)
        elif block.language in SHELL:
            if block.text != TRAIN:
                text = block.text.replace("../decodeonce/", f"{ROOT}/")
                printed = run("bash", "-ec", text, cwd=tmp_path, PATH=PATH)
        elif not TREE_LINE.match(block.text.splitlines()[0]):
            if INTERRUPTED in block.text:
                printed = train_until(tmp_path, "epoch 2:")
            elif RESULT.search(block.text) or block.text.startswith("finished"):
                printed = run(sys.executable, "train.py", cwd=tmp_path)
            assert_shown(block.text.replace(INTERRUPTED, ""), printed)
            shown.append(printed)
    stopped, resumed, finished = shown[-3:]
    assert len(shown) == 6
    assert_learned(RESULT.findall(stopped) + RESULT.findall(resumed))
    assert resumed.startswith("resuming epoch ")
    assert resumed.endswith(finished)
    assert finished.startswith("finished ")
    run("bash", "-ec", next(blocks(HOW_TO / "look-at-a-store.md")).text, cwd=tmp_path, PATH=PATH)
    _, damage, errors, *_ = blocks(HOW_TO / "verify-and-repair.md")
    assert run("bash", "-c", f"({damage.text}) 2>&1", cwd=tmp_path, PATH=PATH) == errors.text


def assert_learned(results: list[tuple[str, str, str]]) -> None:
    """Check that each epoch was run once, that the loss halved, and that the network recognizes most images."""
    epochs, losses, percent = ([float(value) for value in values] for values in zip(*results, strict=True))
    assert epochs == list(range(len(epochs)))
    assert losses[-1] < losses[0] / 2
    assert percent[-1] > 50
