"""Generated scripts do not execute hostile names, and no module executes or unpickles data."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

import decodeonce
from decodeonce.cli import printable
from decodeonce.errors import BuildError
from decodeonce.prep.building.max_bad import Allowance
from decodeonce.prep.jobs import Chain, read_site, write_scripts
from decodeonce.prep.jobs.site import parse_site
from tests.command import prep
from tests.images import make_tree

SRC = Path(decodeonce.__file__).parent
NAMES = [
    '"; touch hacked; "',
    "'; touch hacked; '",
    "$(touch hacked)",
    "`touch hacked`",
    "two\ntouch hacked\nlines",
    "#SBATCH --wrap=touch",
    "a\n#SBATCH --wrap=x\n#PBS -N x",
    "tab\there",
    "-x",
    "--help",
    "a b",
    "~",
    "*",
    "!!",
    "&& touch hacked",
    "caf\udce9",
    "\x1b]0;hacked\x07",
    "$HOME",
]
# A replacement for the programs of batch systems and for prep, which records its folder, $STORE and arguments.
RECORDER = '#!/bin/sh\nprintf "%s\\0" "$#" "$PWD" "$STORE" "$0" "$@" >> "$RECORD"\necho 7\n'


class Recorder:
    """A PATH of programs that record their arguments."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._bin, self._record = folder / "bin", folder / "record"
        self._bin.mkdir()
        for name in names:
            (self._bin / name).write_text(RECORDER)
            (self._bin / name).chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self._bin}:/usr/bin:/bin", "RECORD": str(self._record), "HOME": "/nowhere"}

    def run(self, script: Path) -> list[list[str]]:
        """Run a script with bash, and return [folder, $STORE, name, *arguments] of each program that it calls."""
        self._record.unlink(missing_ok=True)
        subprocess.run(["bash", script], env=self.env, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        words, calls = os.fsdecode(self._record.read_bytes()).split("\0"), []
        while len(words) > 1:
            count, folder, store, program = words[:4]
            calls.append([folder, store, os.path.basename(program), *words[4 : 4 + int(count)]])
            del words[: 4 + int(count)]
        return calls


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path, "sbatch", "scontrol", "qsub", "qstat", "qrls", "prep")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_scripts_do_not_execute_names(tmp_path: Path, recorder: Recorder, scheduler: str, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    out, words = folder / name, ["plan", "list", name, f"--classes={name}", "--map", name]
    commands = [["prep", *words], ["prep", "work", name], ["prep", "finish", name]]
    site, chain = read_site(f"generic-{scheduler}"), Chain(tasks=2, cpus=1, rounds=2, seconds=60, then=Path(name))
    submit = write_scripts(out, site, chain, commands, folder)
    suffix = scheduler if scheduler == "pbs" else "slurm"
    for script, command in zip(("plan", "array", "finish"), commands, strict=True):
        path = submit.parent / f"{script}.{suffix}"
        assert recorder.run(path) == [[str(folder), "", *command]]
        directives = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("#")]
        assert not [line for line in directives if "wrap" in line or "-N x" in line]
    program = {"slurm": "sbatch", "pbs": "qsub"}[scheduler]
    *chained, then = (call for call in recorder.run(submit) if call[2] == program)
    assert [(call[0], call[2], call[-1]) for call in chained] == [
        (str(submit.parent), program, f"{script}.{suffix}") for script in ("plan", "array", "array", "finish")
    ]
    assert then[:3] == [str(folder), str(out), program]
    assert os.path.normpath(then[-1]) == name
    assert not then[-1].startswith("-")
    assert not list(tmp_path.rglob("hacked"))


def test_scripts_pass_arguments_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = '"; touch hacked; "\n$(touch hacked)`touch hacked`'
    folder = tmp_path / name
    make_tree(folder / name, classes=1, per_class=1)
    (folder / "-then").touch()
    monkeypatch.chdir(folder)
    words = ["submit", "slurm", "build", "folder", f"./{name}/train", "./-out", "--tasks", "1", "--cpus", "1"]
    result = prep(*words, "--then", "./-then")
    assert result.returncode == 0, result.stderr
    recorder = Recorder(tmp_path, "sbatch", "scontrol", "prep")
    jobs = folder / "-out.jobs"
    for script in jobs.glob("*.slurm"):  # make the scripts call the recorder instead of prep
        program = shlex.quote(str(Path(sys.executable).with_name("prep")))
        text = script.read_text()
        assert program in text
        script.write_text(text.replace(program, "prep"))
    plan, work, finish = (recorder.run(jobs / f"{name}.slurm")[0][3:] for name in ("plan", "array", "finish"))
    log = ["--log", f"{jobs}/logs/"]
    assert plan == ["plan", "folder", f"./{name}/train", "./-out", *log]
    assert work[:2] == ["work", "./-out"]
    assert finish[:2] == ["finish", "./-out"]
    assert work[-2:] == finish[-2:] == log
    assert [call[-1] for call in recorder.run(jobs / "submit.sh") if call[2] == "sbatch"][-1] == "./-then"
    assert not list(tmp_path.rglob("hacked"))


@pytest.mark.parametrize("name", ["account", "queue"])
@pytest.mark.parametrize(
    "value", ["a\nb", "a\n#SBATCH --wrap=x", "a b", '";x', "$(x)", "`x`", "a\\", "a;b", "a\tb", ""]
)
def test_name_that_would_break_out_of_its_directive_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*expected a name without spaces"):
        Chain(tasks=1, cpus=1, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["name", "source", "launch", "queue_flag", "directives", "setup"])
def test_line_end_in_a_profile_is_refused(key: str) -> None:
    valid = {"name": '"n"', "scheduler": '"slurm"', "source": '"s"', "launch": '"l"'}
    hostile = '"a\\n#SBATCH --wrap=x"'
    profile = {**valid, key: f"[{hostile}]" if key in ("directives", "setup") else hostile}
    with pytest.raises(BuildError, match=f"own.toml: {key} is .*single.*line"):
        parse_site("".join(f"{name} = {value}\n" for name, value in profile.items()), "own.toml")


def test_names_are_printed_without_terminal_escapes(tmp_path: Path) -> None:
    name = "a\x1b]0;hacked\x07\x9b\u202e\r\udce9b"
    command = [sys.executable, "-m", "decodeonce.cli", "info", name]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.endswith("\n")
    assert result.stderr[:-1].isprintable()
    assert r"a\x1b]0;hacked\x07\x9b\u202e" in result.stderr
    assert printable("caf\u00e9 'x' 東") == "caf\u00e9 'x' 東"


MODULES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_command_in_an_error_can_be_pasted(tmp_path: Path, recorder: Recorder, name: str) -> None:
    with pytest.raises(BuildError, match="status") as caught:
        Allowance.parse("0").check(1, 2, "a.jpg: empty file", Path(name))
    command = re.search("list them with `(prep status .*)`", str(caught.value))
    assert command is not None
    (tmp_path / "pasted").write_text(command[1])
    assert [call[2:] for call in recorder.run(tmp_path / "pasted")] == [["prep", "status", name]]
    assert not list(tmp_path.rglob("hacked"))


COMMAND = re.compile(r"\b(?:prep [a-z]+|bash) (?:[-\w]+ )*$")  # text before a value that is an argument of a command
NOT_PATHS = ("__version__", "profile.scheduler", "task")


def arguments_of_commands(tree: ast.AST) -> list[str]:
    """Return the expressions that are arguments of commands in the f-strings of a module."""
    return [
        ast.unparse(value.value)
        for text in ast.walk(tree)
        if isinstance(text, ast.JoinedStr)
        for before, value in pairwise(text.values)
        if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue)
        if COMMAND.search(str(before.value))
    ]


def test_paths_in_commands_of_messages_are_quoted() -> None:
    found = [(path, code) for path in MODULES for code in arguments_of_commands(ast.parse(path.read_bytes()))]
    assert len(found) > 10
    assert [(path, code) for path, code in found if not code.startswith("quoted(") and code not in NOT_PATHS] == []


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "dbm"}
UNSAFE_MODULES |= {"multiprocessing", "copyreg", "code", "pty"}


def unsafe(tree: ast.AST) -> set[str]:
    """Return the names of imports, calls and keywords in a module that could execute or unpickle data."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names if alias.name.partition(".")[0] in UNSAFE_MODULES}
            case ast.ImportFrom(module=str(module), names=names):
                if module.partition(".")[0] in UNSAFE_MODULES:
                    found.add(module)
                found |= {alias.name for alias in names if alias.name in UNSAFE_MODULES | {"ProcessPoolExecutor"}}
            case ast.Attribute(attr="ProcessPoolExecutor"):
                found.add("ProcessPoolExecutor")
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in ("system", "popen"):
                found.add(f"os.{name}")
            case ast.keyword(arg="allow_pickle" | "shell" | "weights_only" as name, value=value):
                if not (isinstance(value, ast.Constant) and value.value is (name == "weights_only")):
                    found.add(name)
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__" as name)):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "yaml"), attr="load")):
                found.add("load")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_no_module_unpickles_or_executes_data(path: Path) -> None:
    assert unsafe(ast.parse(path.read_bytes())) == set()


def test_unsafe_code_is_found() -> None:
    lines: dict[str, str] = {
        "import pickle as p": "pickle",
        "from multiprocessing.connection import Pipe": "multiprocessing.connection",
        "from concurrent.futures import ProcessPoolExecutor": "ProcessPoolExecutor",
        "import concurrent.futures as f; f.ProcessPoolExecutor()": "ProcessPoolExecutor",
        "np.load(x, allow_pickle=True)": "allow_pickle",
        "subprocess.run(x, shell=y)": "shell",
        "os.system(x)": "os.system",
        "eval(x)": "eval",
        "torch.load(x)": "load",
    }
    check: Callable[[str], set[str]] = lambda line: unsafe(ast.parse(line))  # noqa: E731
    assert {line: check(line) for line in lines} == {line: {name} for line, name in lines.items()}
    assert check("np.load(x, allow_pickle=False); subprocess.run(x, shell=False)") == set()
