"""Progress if standard error is not a terminal."""

from __future__ import annotations

import pytest

from decodeonce.cli import output


def test_long_command_prints_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "PROGRESS_SECONDS", 0.0)
    with output.count_bar("images", 3) as update:
        update(1)
        update(2)
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "1 of 3 images",
        "3 of 3 images",
    ]


def test_short_command_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with output.count_bar("rows") as update:
        update(1)
    assert capsys.readouterr().err == ""
