"""Generated scripts do not execute hostile names, and no command unpickles data."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from decodeonce.cli import printable
from decodeonce.prep.jobs.base import Chain
from decodeonce.prep.jobs.chain import write_scripts
from decodeonce.prep.jobs.pbs import PBS
from decodeonce.prep.jobs.site import read_site
from tests.command import prep, printed, write_program
from tests.images import make_tree
from tests.store.signing import replace_file
from tests.stores import make_store, random_images

NAMES = [
    '"; touch hacked; "',
    "'; touch hacked; '",
    "$(touch hacked)",
    "`touch hacked`",
    "two\ntouch hacked\nlines",
    "a\x1b'\u202e\r",
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
RECORDER = 'printf "%s\\0" "$#" "$PWD" "$STORE" "$0" "$@" >> "$RECORD"\necho 7'


class Recorder:
    """A PATH of programs that record their arguments."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._bin, self._record = folder / "bin", folder / "record"
        for name in names:
            write_program(self._bin, name, RECORDER)

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
    then_name = name if scheduler == "slurm" or not set(name) & set(PBS.forbidden_in_script) else "then.pbs"
    site, chain = read_site(f"generic-{scheduler}"), Chain(tasks=2, cpus=1, rounds=2, seconds=60, then=Path(then_name))
    submit = write_scripts(out, site, chain, commands, folder)
    suffix = scheduler if scheduler == "pbs" else "slurm"
    for script, command in zip(("plan", "array", "finish"), commands, strict=True):
        path = submit.parent / f"{script}.{suffix}"
        assert recorder.run(path) == [[str(folder), "", *command]]
        directives = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("#")]
        assert not [line for line in directives if "--wrap=" in line or "-N x" in line]
    program = {"slurm": "sbatch", "pbs": "qsub"}[scheduler]
    *chained, then = (call for call in recorder.run(submit) if call[2] == program)
    assert [(call[0], call[2], call[-1]) for call in chained] == [
        (str(submit.parent), program, f"{script}.{suffix}") for script in ("plan", "array", "array", "finish")
    ]
    assert then[:3] == [str(folder), str(out), program]
    assert os.path.normpath(then[-1]) == then_name
    assert not then[-1].startswith("-")
    assert not list(tmp_path.rglob("hacked"))


def test_scripts_pass_arguments_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = '"; touch hacked; "\n$(touch hacked)`touch hacked`'
    folder = tmp_path / name
    make_tree(folder / name, classes=1, per_class=1)
    (folder / "-then").touch()
    monkeypatch.chdir(folder)
    words = ["submit", "slurm", "build", "folder", f"./{name}/train", "./-out", "--tasks", "1", "--cpus", "1"]
    printed(*words, "--then", "./-then")
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


def test_names_are_printed_without_terminal_escapes(tmp_path: Path) -> None:
    name = "a\x1b]0;hacked\x07\x9b\u202e\r\udce9b"
    command = [sys.executable, "-m", "decodeonce.cli", "info", name]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.endswith("\n")
    assert result.stderr[:-1].isprintable()
    assert r"a\x1b]0;hacked\x07\x9b\u202e" in result.stderr
    assert printable("caf\u00e9 'x' 東") == "caf\u00e9 'x' 東"


class Hostile:
    """An object whose pickle creates a folder when it is loaded."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.makedirs, ("hacked", 0o777, True)


@pytest.mark.parametrize("name", ["labels.npy", "checksums.npy", "score.npy", "images-00000.npy"])
def test_arrays_are_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    store = make_store(tmp_path / "store", random_images(4), columns={"score": np.zeros(4)})
    np.save("hostile.npy", np.array([Hostile()] * 4, dtype=object))
    if name == "images-00000.npy":
        shutil.copy("hostile.npy", store / name)
    else:
        replace_file(store, name, Path("hostile.npy").read_bytes())
    commands = ("verify store", "info store", "ls store", "convert store out", "repair store")
    for command in (*commands, "column add store more hostile.npy"):
        prep(*command.split())
        assert not Path("hacked").exists(), command
    np.load("hostile.npy", allow_pickle=True)
    assert Path("hacked").exists()  # so the file was hostile
