"""Files for code hosts: workflows and the hook run existing targets, and issue templates name valid commands."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.test_commands import INLINE, parse

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
if not WORKFLOWS:
    pytest.skip("the sdist has no files of code hosts", allow_module_level=True)


def test_workflows_and_hook_run_existing_targets() -> None:
    texts = [path.read_text() for path in (*WORKFLOWS, ROOT / ".pre-commit-config.yaml")]
    made = " ".join(words for text in texts for words in re.findall(r"(?:run|entry): make (.+)", text)).split()
    assert {"docs", "dist", "lint"} <= set(made)
    subprocess.run(["make", "--dry-run", *made], cwd=ROOT, check=True, capture_output=True)
    parts = re.findall(r"^    (\w+)\)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    run = " ".join(re.findall(r"part: \[(.+)\]", "".join(texts)))
    assert set(parts) == set(re.findall(r"\w+", run))
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_commands_in_issue_templates_are_valid(template: Path) -> None:
    commands = INLINE.findall(template.read_text())
    assert "prep doctor --json PATH" in commands
    for command in commands:
        parse(command.replace("KIND", "folder").split()[1:])
