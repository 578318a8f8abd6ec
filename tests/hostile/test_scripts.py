"""Generated scripts, run for real with names that would be commands; and what no module does."""

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
from decodeonce.prep.build.max_bad import Allowance
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
# What stands in for the batch system and for prep: writes down how many arguments it has, from where, and what.
RECORDER = '#!/bin/sh\nprintf "%s\\0" "$#" "$PWD" "$STORE" "$0" "$@" >> "$RECORD"\necho 7\n'


class Recorder:
    """Programs on a PATH of their own that write down their arguments."""

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
        """Run a script with bash; returns of each program [folder, $STORE, its name, *arguments]."""
        self._record.unlink(missing_ok=True)
        subprocess.run(["bash", script], env=self.env, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        written, calls = os.fsdecode(self._record.read_bytes()).split("\0"), []
        while len(written) > 1:
            count, folder, store, program = written[:4]
            calls.append([folder, store, os.path.basename(program), *written[4 : 4 + int(count)]])
            del written[: 4 + int(count)]
        return calls


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path, "sbatch", "scontrol", "qsub", "qstat", "qrls", "prep")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_no_name_is_a_command(tmp_path: Path, recorder: Recorder, scheduler: str, name: str) -> None:
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


def test_what_was_typed_arrives_whatever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    for script in jobs.glob("*.slurm"):  # in place of the prep that stands there
        called = shlex.quote(str(Path(sys.executable).with_name("prep")))
        text = script.read_text()
        assert called in text
        script.write_text(text.replace(called, "prep"))
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
def test_a_name_that_would_leave_its_directive_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*expected a name without spaces"):
        Chain(tasks=1, cpus=1, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["name", "source", "launch", "queue_flag", "directives", "setup"])
def test_a_line_end_in_a_profile_is_refused(key: str) -> None:
    whole = {"name": '"n"', "scheduler": '"slurm"', "source": '"s"', "launch": '"l"'}
    wrong = '"a\\n#SBATCH --wrap=x"'
    profile = {**whole, key: f"[{wrong}]" if key in ("directives", "setup") else wrong}
    with pytest.raises(BuildError, match=f"own.toml: {key} is .*single.*line"):
        parse_site("".join(f"{name} = {value}\n" for name, value in profile.items()), "own.toml")


def test_no_name_commands_a_terminal(tmp_path: Path) -> None:
    name = "a\x1b]0;hacked\x07\x9b\u202e\r\udce9b"
    command = [sys.executable, "-m", "decodeonce.cli", "info", name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("\n")
    assert done.stderr[:-1].isprintable()
    assert r"a\x1b]0;hacked\x07\x9b\u202e" in done.stderr
    assert printable("caf\u00e9 'x' 東") == "caf\u00e9 'x' 東"


MODULES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_command_in_an_error_can_be_pasted(tmp_path: Path, recorder: Recorder, name: str) -> None:
    with pytest.raises(BuildError, match="status") as caught:
        Allowance.parse("0").check(1, 2, "a.jpg: empty file", Path(name))
    command = re.search("list them with `(prep status .*)`", str(caught.value))
    assert command is not None
    (tmp_path / "pasted").write_text(command[1])
    assert [call[2:] for call in recorder.run(tmp_path / "pasted")] == [["prep", "status", name]]
    assert not list(tmp_path.rglob("hacked"))


COMMAND = re.compile(r"\b(?:prep [a-z]+|bash) (?:[-\w]+ )*$")  # a value that follows is an argument in a command
NO_PATHS = ("__version__", "profile.scheduler")


def arguments_of_commands(tree: ast.AST) -> list[str]:
    """The expressions that stand as arguments of commands in a module's texts."""
    return [
        ast.unparse(value.value)
        for text in ast.walk(tree)
        if isinstance(text, ast.JoinedStr)
        for before, value in pairwise(text.values)
        if isinstance(before, ast.Constant) and isinstance(value, ast.FormattedValue)
        if COMMAND.search(str(before.value))
    ]


def test_every_path_in_a_command_of_a_message_is_quoted() -> None:
    found = [(path, said) for path in MODULES for said in arguments_of_commands(ast.parse(path.read_bytes()))]
    assert len(found) > 10
    assert [one for one in found if not one[1].startswith("quoted(") and one[1] not in NO_PATHS] == []


UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "dbm"}
UNSAFE_MODULES |= {"multiprocessing", "copyreg", "code", "pty"}


def unsafe(tree: ast.AST) -> set[str]:
    """What in a module would run or unpickle data."""
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
def test_no_module_unpickles_or_runs_data(path: Path) -> None:
    assert unsafe(ast.parse(path.read_bytes())) == set()


def test_what_is_unsafe_is_found() -> None:
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
    look: Callable[[str], set[str]] = lambda line: unsafe(ast.parse(line))  # noqa: E731
    assert {line: look(line) for line in lines} == {line: {name} for line, name in lines.items()}
    assert look("np.load(x, allow_pickle=False); subprocess.run(x, shell=False)") == set()
