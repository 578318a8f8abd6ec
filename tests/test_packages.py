"""Detection and automatic installation of the programs that tests need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packages import is_fatal, need


def test_skipping_fails_only_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [is_fatal(environ) for environ in ({}, {"CI": ""}, {"CI": "true"})] == [False, False, True]
    assert not is_fatal({"CI": "true", "ALLOW_SKIPS": "1"})
    monkeypatch.setattr("tests.packages.apt_get", lambda packages: "no network")
    for value, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", value)
        with pytest.raises(outcome, match=r"apt-get install no-such-package \(no network\)"):
            need({"no-such-package": "no-such-program"})


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import pytest
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_folders_tested_without_torch_do_not_import_it() -> None:
    root = Path(__file__).resolve().parents[1]
    legs = root / ".ci/legs"
    if not legs.exists():
        pytest.skip("not a checkout: .ci/legs is missing")
    folders = re.findall(r"tests/\w+", legs.read_text())
    assert len(folders) >= 4
    environ = os.environ | {"ALLOW_SKIPS": "1"}
    command = [sys.executable, "-c", WITHOUT_TORCH, *folders]
    done = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
