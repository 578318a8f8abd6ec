"""Progress where standard error is no terminal."""

from __future__ import annotations

import pytest

from decodeonce.cli import progress


def test_a_long_command_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    with progress.count_bar("pictures", 3) as bar:
        bar.update()
        bar.update(2)
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "1 of 3 pictures",
        "3 of 3 pictures",
    ]


def test_a_short_one_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.count_bar("rows") as bar:
        bar.update()
    assert capsys.readouterr().err == ""
