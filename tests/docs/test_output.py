"""Commands whose output pages show, with the numbers of one machine, print the same lines here, with other numbers."""

import re
from pathlib import Path

import pytest

from tests.command import prep
from tests.docs.pages import ROOT, blocks
from tests.images import make_tree

SHOWN = {
    "prep build imagenet imagenet new.store --dry-run": "docs/how-to/size-and-fit.md",
    "prep doctor": "docs/reference/commands.md",
}


def shown(command: str) -> str:
    """Return the output that a page shows for a command."""
    words = command.split()[:3]
    texts = [block.text for block in blocks(ROOT / SHOWN[command])]
    if command == "prep doctor":
        return next(text for text in texts if text.startswith("ok "))
    return texts[next(index for index, text in enumerate(texts) if text.split()[:3] == words) + 1]


def labels(output: str) -> set[str]:
    """Return what lines say before their first number."""
    lines = [line for line in output.splitlines() if line.strip() != "..."]
    level = re.compile(r"^(ok|warn|bad) +")
    return {re.split(r"  |\d", level.sub("", line.strip()))[0].strip(" -:") for line in lines}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with imagenet/."""
    root = tmp_path_factory.mktemp("shown")
    make_tree(root / "imagenet")
    return root


@pytest.mark.long
@pytest.mark.parametrize("command", SHOWN)
def test_lines_of_output_are_printed(command: str, folder: Path) -> None:
    expected, printed = shown(command), prep(*command.split()[1:], cwd=folder).stdout
    expected = expected.replace("/data/imagenet", "imagenet")
    assert labels(expected) <= labels(printed), printed
