"""What commands print on a terminal: lines break between words, and paths and commands stay whole."""

import io
import re
import sys
from pathlib import Path

import pytest

from decodeonce import cli
from tests.stores import make_store, random_images
from tests.terminal import Terminal


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(text: str, monkeypatch: pytest.MonkeyPatch, columns: int = 40) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    return cli.fitted(text, Tty()).splitlines()


def test_long_lines_continue_below_their_last_column(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown("ok    cores   2 of 2 usable (affinity 2, cgroup quota none)", monkeypatch) == [
        "ok    cores   2 of 2 usable (affinity 2,",
        "              cgroup quota none)",
    ]
    assert shown("prep: note: no row of the store is damaged", monkeypatch)[1] == "  damaged"


def test_paths_and_commands_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/data/{'long-name/' * 5}x"
    assert f"  {path}:" in shown(f"prep: error: {path}: no such folder", monkeypatch)
    lines = shown("prep: error: rows are damaged; run: prep repair /data/train.store --from /data/other", monkeypatch)
    assert lines[-1] == "  prep repair /data/train.store --from /data/other"
    lines = shown(
        "prep: error: no classes; run: prep build folder /data/train OUT; if these are classes, pass", monkeypatch
    )
    assert lines[-2:] == ["  prep build folder /data/train OUT; if", "  these are classes, pass"]
    assert shown("out: 3 rows in 1 class; next: prep info out", monkeypatch)[-1] == "  prep info out"
    lines = shown("prep: error: expected the folder that `prep build imagenet SRC OUT` makes", monkeypatch)
    assert "  `prep build imagenet SRC OUT` makes" in lines


def test_output_to_files_is_not_wrapped() -> None:
    text = "word " * 50
    assert cli.fitted(text, io.StringIO()) == text


def test_commands_wrap_at_the_width_of_their_terminal(tmp_path: Path) -> None:
    store = tmp_path / "a.store"
    make_store(store, random_images(3))
    for command in (["info", str(store)], ["info", str(tmp_path / "none")]):
        with Terminal(sys.executable, "-m", "decodeonce.cli", *command, cwd=tmp_path, columns=80) as terminal:
            lines = terminal.read_until(None).splitlines()
        for line in lines:
            visible = re.sub("\x1b\\[[0-9]+m", "", line)
            assert len(visible) <= 80 or len(visible.split()) == 1, line


def test_error_is_bold_on_a_terminal_with_colors(tmp_path: Path) -> None:
    def shown(**environ: str) -> str:
        command = [sys.executable, "-m", "decodeonce.cli", "info", "none"]
        with Terminal(*command, cwd=tmp_path, environ=environ) as terminal:
            return terminal.read_until(None)[:20]

    assert shown(TERM="xterm").startswith("prep: \x1b[1merror:\x1b[0m")
    assert shown().startswith("prep: error: none")
    assert shown(TERM="xterm", NO_COLOR="1").startswith("prep: error: none")


def test_bar_is_wide_and_a_terminal_without_columns_gets_lines(tmp_path: Path) -> None:
    script = (
        "from decodeonce.cli import output\n"
        "output.PROGRESS_SECONDS = 0\n"
        "with output.build_progress() as show:\n"
        "    from decodeonce.build import Progress\n"
        "    show(Progress(rows=1500, total_rows=2000, new_rows=1500, bytes=9_000_000, rejects=REJECTS))\n"
    )
    shown = []
    for columns, rejects in ((80, 0), (80, 2), (0, 2)):
        command = [sys.executable, "-c", script.replace("REJECTS", str(rejects))]
        with Terminal(*command, cwd=tmp_path, columns=columns, environ={"TERM": "xterm"}) as terminal:
            shown.append(re.split(r"[\r\n]+|\x1b\[\w", terminal.read_until(None).strip())[-1])
    assert re.fullmatch(r" 75%\|[█▏▎▍▌▋▊▉ ]{21,}\| 1,500/2,000 \[00:0\d<00:0\d, *[\d.]+ images/s\]", shown[0]), shown[0]
    assert shown[1].endswith(" images/s, 2 rejects]")
    assert re.fullmatch(r"1,500 of 2,000 images, [\d,]+ images/s, [\d,]+ MB/s, 2 rejects, \d+ s left", shown[2]), shown[
        2
    ]


def test_warning_is_printed_above_the_progress_bar(tmp_path: Path) -> None:
    script = (
        "import logging\n"
        "from decodeonce.cli import output\n"
        "with output.count_bar('images', total=2) as update:\n"
        "    update(1)\n"
        "    logging.getLogger('decodeonce').warning('first ' + 'word ' * 20)\n"
    )
    with Terminal(sys.executable, "-c", script, cwd=tmp_path, environ={"TERM": "xterm"}) as terminal:
        shown = [re.split(r"\r|\x1b\[K", line.rstrip("\r"))[-1] for line in terminal.read_until(None).split("\n")]
    assert shown[:2] == [("first " + "word " * 15).strip(), "  word word word word word"]
