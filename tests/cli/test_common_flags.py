"""Features of all commands: examples, suggestions, sizes, --quiet, --log, colors."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from decodeonce import __version__, cli
from decodeonce.cli import log, output
from decodeonce.cli.command import parse_bytes
from decodeonce.cli.examples import EXAMPLES, examples
from decodeonce.prep.sources import KINDS
from tests.command import app, assert_fails, prep, prep_process, run, write_program
from tests.images import make_tree
from tests.stores import make_store, random_images
from tests.terminal import Terminal
from tools.command_reference import members


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command with its words after `prep`."""
    for name, command in members(group or typer.main.get_command(app)).items():
        yield " ".join((*path, name)), command
        yield from commands(command, (*path, name))


EVERY = dict(commands())
COMMANDS = {name: command for name, command in EVERY.items() if not members(command)}


def test_every_command_has_examples() -> None:
    kinds = {f"{verb} {kind}" for verb in ("build", "plan") for kind in KINDS}
    assert all(examples(name) for name in set(EVERY) - kinds)


def test_every_example_is_valid() -> None:
    for line in EXAMPLES:
        words = shlex.split(line)
        words = words[words.index("prep") + 1 :]
        name = next(name for name in COMMANDS if words[: len(name.split())] == name.split())
        assert line in examples(name)
        context = COMMANDS[name].make_context(name, words[len(name.split()) :])
        if nested := context.params.get("words"):  # they are another command
            verb, kind, *rest = nested if name.startswith("submit") else ["build", *nested]
            COMMANDS[f"{verb} {kind}"].make_context("build", rest)


@pytest.mark.parametrize("columns", [60, 160])
def test_help_uses_terminal_width_and_cuts_no_summary(columns: int) -> None:
    _, *lines = on_terminal("--help", columns=columns).splitlines()
    assert min(columns, 120) - 12 < max(map(len, lines)) <= columns - 2  # no sentence is longer than 130
    assert not [line for line in lines if line.endswith("...")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["biuld", "folder", "a", "b"], "there is no command 'biuld'; did you mean build? (see prep --help)"),
        (["nope"], "there is no command 'nope'; expected one of: build, plan, work, finish"),
        (["submit", "build", "imagenet"], "expected one of: slurm, pbs (see prep submit --help)"),
        (["plan", "movies", "a", "b"], f"there is no KIND 'movies'; expected one of: {', '.join(KINDS)} (see prep"),
        (["plan", "flder", "a", "b"], "there is no KIND 'flder'; did you mean folder?"),
        (["build"], f"Missing command. Expected one of: {', '.join(KINDS)}. (see prep build --help)"),
        (["info", "x", "--jsno"], "No such option: --jsno "),
        (["build", "folder", "a", "b", "--fit", "corp"], "--fit': 'corp' is not one of 'crop', 'stretch', 'pad'"),
        (["build", "folder", "a", "b", "--workers"], "requires an argument. (see prep build folder --help)"),
        (["--nope"], "No such option: --nope (see prep --help)"),
        (["convert", "train.store"], "Missing argument 'OUT'. (see prep convert --help)"),
        (["build", "folder", "a", "b", "--size", "12x"], "--size 12x"),
        (["build", "folder", "a", "b", "--shuffle-seed", "²"], "--shuffle-seed ²"),
        (["build", "folder", "a", "b", "--shuffle-seed", "9" * 19], "--shuffle-seed 999"),
        (["build", "folder", "a", "b", "--max-bad", "x"], "max-bad is 'x'"),
        (["build", "list", "a", "b", "--root", "c", "--root=d"], "--root is given 2 times, but takes one value"),
        (["plan", "folder", "a", "b", "--classes", "c", "--classes", "c"], "--classes is given 2 times, but takes one"),
        (
            ["build", "parquet", "a", "b", "--image-column", "left", "--image-column", "right"],
            "--image-column is given",
        ),
        (["build", "folder", "a", "b", "--size", "8", "--size", "9"], "--size is given 2 times, but takes one value"),
        (["stage", "a", "b", "--rank", "0", "--rank=0"], "--rank is given 2 times, but takes one value"),
        (["build", "folder", "a", "b", "--classes", "nowhere.txt"], "nowhere.txt"),
        (["work", "b", "--task", "2", "--tasks", "2"], "task is 2 of 2"),
        (["work", "b", "--task", "-1"], "'--task': expected a whole number of 0 or more (see prep work --help)"),
        (["show", "b", "--random", "x"], "'--random': expected a whole number from 1 to 4,096 (see prep show"),
    ],
)
def test_usage_error_names_what_is_expected(words: list[str], expected: str, tmp_path: Path) -> None:
    assert_fails(prep(*words, cwd=tmp_path), 2, expected)
    assert list(tmp_path.iterdir()) == []


def test_missing_kind_is_named(tmp_path: Path) -> None:
    val = "ILSVRC2012_img_val.tar"
    files = [
        "pics/cat/a.jpg",
        "all images/a.jpg",
        "t/a.parquet",
        "s/0.tar",
        f"im/{val}",
        "z/0.tar.gz",
        "a.csv",
        "a.tar",
        "a.tgz",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).touch()
    kinds = {
        "pics": "folder",
        "all images": "folder",
        "t": "parquet",
        "s": "webdataset",
        "im": "imagenet",
        "z": "webdataset",
    }
    for src, kind in {
        **kinds,
        "a.csv": "list",
        "a.tar": "webdataset",
        "a.tgz": "webdataset",
        f"im/{val}": "imagenet",
    }.items():
        expected = f"KIND is missing; for {src}, it is probably {kind}; write {kind} before it (see prep build --help)"
        assert_fails(prep("build", src, "x.store", "--size", "8", cwd=tmp_path), 2, expected)
        submit = prep("submit", "slurm", "build", src, "x.store", "--tasks", 2, "--cpus", 4, cwd=tmp_path)
        assert_fails(submit, 2, f"it is probably {kind}; write {kind} before it (see prep build --help)")


def test_help_has_headings_and_arguments_without_types() -> None:
    shown = prep("build", "list", "--help").stdout
    _, *parts = re.split(r"^(\w+):$", shown, flags=re.MULTILINE)
    flags = {
        heading: re.findall(r"^  (?:-\w, )?--([a-z-]+)", text, re.MULTILINE)
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }
    assert [*flags] == ["Arguments", "Source", "Images", "Store", "Run", "Boxes", "Options", "Examples"]
    assert flags["Source"] == [
        *("root", "column", "image-column", "label-column", "suffix", "no-labels"),
        *("classes", "follow-links", "expect"),
    ]
    assert flags["Options"] == ["quiet", "log", "json", "help"]  # every flag of a build has a heading
    assert shown.startswith("Usage: prep build list [OPTIONS] SRC OUT\n")
    assert "\n  SRC  Source " in shown
    assert parts[-1].splitlines()[1:] == [f"  {line}" for line in examples("build list")]
    assert prep("convert", "--help").stdout.startswith("Usage: prep convert [OPTIONS] IN... OUT\n")
    assert prep("doctor", "--help").stdout.startswith("Usage: prep doctor [OPTIONS] [PATH...]\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["build", "folder", "pictures", "out"],
            "pictures: contains no class folders; expected pictures/<class>/<image>",
        ),
        (["build", "imagenet", "train", "out"], "train: no images found; read as class folders"),
        (["build", "imagenet", "loop", "out"], "loop: Too many levels of symbolic links"),
        (["convert", "store", "loop/out"], "loop: a file is in the way"),
    ],
)
def test_wrong_path_error_says_what_was_expected(words: list[str], expected: str, tmp_path: Path) -> None:
    make_store(tmp_path / "store", random_images(4))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "train/n0").mkdir(parents=True)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/1.jpg").write_bytes(b"x")
    assert_fails(prep(*words, cwd=tmp_path), 1, expected)


def test_sizes_are_parsed_and_errors_name_the_flag() -> None:
    sizes = {"32GiB": 32 << 30, "10GB": 10**10, "1.5TB": 15 * 10**11, "4096": 4096, "1 kb": 1000}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    with pytest.raises(typer.BadParameter, match=r"--cache 3x: expected a size such as 32GiB, 10GB or 500MiB$"):
        parse_bytes("3x", "--cache")
    with pytest.raises(typer.BadParameter, match="did you mean 32GiB"):
        parse_bytes("32g", "--cache")
    with pytest.raises(typer.BadParameter, match=r"--cache 32: 32 bytes cannot hold an image; did you mean 32GiB\?$"):
        parse_bytes("32", "--cache")


def test_all_other_commands_have_quiet_and_log() -> None:
    for name, command in COMMANDS.items():
        flags = {flag for param in command.params for flag in param.opts}
        assert (flags >= {"--quiet", "-q", "--log"}) == (name not in {"status", "logs", "info", "ls", "doctor"}), name


def test_quiet_prints_only_data(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = ["imagenet", str(tree), "out", "--size", "8"]
    for words in (
        ["build", "imagenet", str(tree), "alone", "--size", "8"],
        ["submit", "slurm", "build", *made, "--tasks", "1", "--cpus", "1"],
        ["plan", *made],
        ["work", "out"],
        ["finish", "out"],
        ["build", *made],
        ["verify", "out"],
        ["repair", "out"],
        ["show", "out"],
        ["convert", "out", "other", "--format", "hdf5"],
        ["stage", "out", "part", "--node-rank", "0", "--node-count", "2"],
    ):
        quiet = prep(*words, "-q")
        assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", ""), words
    assert json.loads(prep("verify", "out", "--quiet", "--json").stdout)["ok"]
    assert prep("info", "out").stdout.startswith("store ")  # the next command is not quiet
    assert prep("verify", "out").stdout == "out: 15 rows intact\n"


def test_quiet_prints_errors_and_keeps_exit_codes(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_images(9))
    assert "9 rows" in on_terminal("verify", store, TERM="xterm")
    assert on_terminal("verify", store, "-q", TERM="xterm") == ""  # no progress bar
    os.truncate(store / "labels.npy", 100)
    quiet = prep("verify", store, "-q")
    assert (quiet.returncode, quiet.stdout) == (1, "")
    assert f"prep: error: {store}/labels.npy: " in quiet.stderr
    assert_fails(prep("work", tmp_path, "-q"), 1, "no plan here")


def on_terminal(*arguments: object, columns: int = 80, **environ: str) -> str:
    """Return what `prep` prints on a terminal."""
    words = ("-m", "decodeonce.cli", *map(str, arguments))
    with Terminal(sys.executable, *words, cwd=Path(), columns=columns, environ=environ) as terminal:
        return terminal.read_until(None)


def events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log, and check that their times are in order."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    times = [event["time"] for event in found]
    assert times == sorted(times)
    assert all(time.endswith("+00:00") for time in times)
    return found


def test_log_records_start_progress_and_outcome(tree: Path, tmp_path: Path) -> None:
    words = ["build", "imagenet", tree, "out", "--size", 8, "--workers", 1, "--log", "log.jsonl"]
    assert prep_process(*words, cwd=tmp_path).returncode == 0
    start, *between, outcome = events(tmp_path / "log.jsonl")
    assert start["event"] == "start"
    assert start["version"] == __version__
    assert start["command"] == ["prep", *map(str, words)]
    assert {"launcher", "task"} < set(start)
    [(host, pid)] = {(event["host"], event["pid"]) for event in (start, *between, outcome)}
    assert host == platform.node()
    assert pid != os.getpid()
    assert [event["event"] for event in between] == ["message", "progress", "message"]
    assert between[0]["message"] == f"{tree}: class folders in train, 3 classes"
    progress = between[1]
    assert (progress["rows"], progress["total_rows"], progress["rejects"], progress["seconds_left"]) == (15, 15, 0, 0)
    assert progress["rows_per_s"] > 0
    assert progress["bytes_per_s"] > 0
    assert outcome["event"] == "finished"
    assert (outcome["exit_code"], outcome["message"]) == (0, between[2]["message"])
    assert outcome["seconds"] > 0


def test_log_ends_with_outcome_and_next_run_appends(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"time": "2000-01-01T00:00:00.000+00:00", "event": "half"')  # an incomplete line, from a full disk
    assert_fails(prep("finish", tmp_path / "out", "--log", file), 1, "no such folder")
    assert_fails(prep("work", tmp_path / "out", "--task", 1, "--log", file), 2, "--task requires --tasks")
    found = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert [event["event"] for event in found] == ["start", "message", "failed"] * 2
    assert [event["exit_code"] for event in found[2::3]] == [1, 2]
    assert [event["message"] for event in found[2::3]] == [event["message"] for event in found[1::3]]
    assert "no such folder" in found[2]["message"]


@pytest.mark.parametrize(
    "words",
    [
        ["{tree}", "out", "--boxes", "https://me:hush@host/a.json?key=hush"],
        ["https://me:hush@host/a%20b?key=hush", "out"],
    ],
)
def test_messages_and_logs_show_no_secret_of_a_url(tree: Path, tmp_path: Path, words: list[str]) -> None:
    given = [word.format(tree=tree / "train") for word in words]
    done = prep("build", "folder", *given, "--log", "log", cwd=tmp_path)
    assert (done.returncode, "host/a" in done.stderr) == (1, True), done.stderr
    written = (tmp_path / "log").read_text()
    assert written.count("host/a") >= 2
    assert "hush" not in done.stdout + done.stderr + written


@pytest.mark.parametrize("word", ["https://host/a b?key=hush", "--boxes=https://me:hu sh@host/a"])
def test_url_with_a_secret_and_a_space_is_refused(tmp_path: Path, word: str) -> None:
    done = prep("build", "folder", tmp_path, tmp_path / "out", word, "--log", tmp_path / "log")
    assert_fails(done, 1, "the URL also has a password or a query, and a space; write %20 for the space")
    assert ("hu" in done.stdout + done.stderr, os.listdir(tmp_path)) == (False, [])


def test_log_that_cannot_be_written_warns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "store", random_images(9))
    (tmp_path / "mine.csv").write_text("a,b")
    os.mkfifo(tmp_path / "fifo")
    for name, why in (
        ("/dev/full", "No space left on device"),
        ("store.json/x", "Not a directory"),
        (str(tmp_path / "mine.csv"), "contains something other than JSON lines and was not changed"),
        (str(tmp_path / "fifo"), "No such device or address"),  # without a reader
    ):
        result = prep("verify", store, "--log", store / name)
        assert (result.returncode, result.stdout) == (0, f"{store}: 9 rows intact\n")
        assert capfd.readouterr().err == f"prep: --log {store / name}: {why}; continuing without a log\n"
    assert (tmp_path / "mine.csv").read_text() == "a,b"


def test_closed_streams_do_not_matter(tmp_path: Path) -> None:
    """A file that is opened later must not get the number of a closed stream: the build logs and is intact."""
    make_tree(tmp_path / "src")
    build = "build imagenet src out --size 8 --workers 1 --log log <&- >&- 2>&-"
    for words in (build, "verify out 2>&-"):
        command = ["sh", "-c", f'"$0" -m decodeonce.cli {words}', sys.executable]
        assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert events(tmp_path / "log")[-1]["event"] == "finished"


def test_progress_is_logged_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(path: Path) -> list[int]:
        log.begin(str(path))
        with output.count_bar("images", 5) as count:
            for _ in range(5):
                count(1)
        cli.log_outcome(0)
        cli.log_outcome(75, "late")  # as after a signal at the last moment
        assert [event["event"] for event in events(path) if "exit_code" in event] == ["finished"]
        return [event["rows"] for event in events(path) if event["event"] == "progress"]

    assert output.LOG_SECONDS == 30
    assert rows(tmp_path / "rare") == [5]
    monkeypatch.setattr(output, "LOG_SECONDS", 0.0)
    assert rows(tmp_path / "often") == [1, 2, 3, 4, 5]


def test_long_commands_print_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, expected in ((output.PROGRESS_SECONDS, []), (0.0, ["1 of 3 images", "3 of 3 images"])):
        monkeypatch.setattr(output, "PROGRESS_SECONDS", seconds)
        with output.count_bar("images", 3) as update:
            update(1)
            update(2)
        assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == expected


# ---- Shell completion in bash

# Do what bash does when Tab is pressed: put the words in COMP_WORDS; the function fills COMPREPLY.
TAB = 'COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _prep_completion prep; echo "${COMPREPLY[*]}"\n'


def test_bash_completes_commands_flags_and_values(tmp_path: Path) -> None:
    write_program(tmp_path / "bin", "prep", f'exec {shlex.quote(sys.executable)} -m decodeonce.cli "$@"')
    make_store(tmp_path / "s", random_images(3))
    wanted = {
        "prep build im": "imagenet",
        "prep build folder src out --fit ''": "crop stretch pad",
        "prep ls s --class cla": "class0 class1 class2",
        "prep show none --class ''": "",
        "prep info tr": "",  # no completion of ours, so bash completes files
    }
    script = "source <(prep --show-completion)\ncomplete -p prep\n" + "".join(TAB % words for words in wanted)
    shown = run("bash", "-c", script, cwd=tmp_path, PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    registered, *found = shown.splitlines()
    assert registered == "complete -o default -F _prep_completion prep"
    assert dict(zip(wanted, found, strict=True)) == wanted


def test_completion_imports_no_slow_modules(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.argv = ['prep']\nfrom decodeonce.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'PIL', 'h5py', 'tqdm', 'decodeonce.prep.building'} & sys.modules.keys()))"
    )
    typed = {"COMP_WORDS": "prep ls --cla", "COMP_CWORD": "2", "_PREP_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **typed}, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["--class", "[]"]
