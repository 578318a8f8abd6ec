"""Code of a user changes neither the status of a build, nor its folders, output or end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from decodeonce.prep.user_code import ClosedFiles, user_code
from tests.command import assert_fails, prep_process
from tests.images import jpeg, make_tree

COUNT = 300
DATASET = """
import os, sys
from pathlib import Path
from subprocess import CompletedProcess
{at_import}

class Images:
    def __len__(self):
        return {count}

    def __getitem__(self, index):
{at_samples}
        return Path("image.jpg").read_bytes(), 0

def images():
    {at_call}
    return Images()
"""


def dataset(at_sample: str = "", at_import: str = "", at_call: str = "pass") -> str:
    """Return a module whose dataset runs one line of `at_sample` at each of the samples 200, 201 and so on."""
    lines = [f"        if index == {200 + number}: {line}" for number, line in enumerate(at_sample.splitlines())]
    return DATASET.format(at_samples="\n".join(lines), at_import=at_import, at_call=at_call, count=COUNT)


def build(folder: Path, *flags: str, **code: str) -> CompletedProcess[str]:
    (folder / "image.jpg").write_bytes(jpeg(30, 20))
    (folder / "mine.py").write_text(dataset(**code))
    return prep_process("build", "dataset", "mine:images", "out", "--size", 8, "--workers", 1, *flags, cwd=folder)


FAILURES = {
    "sys.exit(0)": "SystemExit: 0",
    "raise ValueError('x' * 100_000)": f"ValueError: {'x' * 500}...",
    "raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()": "its text raised ZeroDivisionError",
    "raise ValueError('\\udcff')": r"ValueError: \\udcff",
    r"return Path('image.jpg').read_bytes(), 'a\ud800'": "which is not valid Unicode",
}


def test_dataset_that_fails_rejects_only_its_samples_for_readable_reasons(tmp_path: Path) -> None:
    done = build(tmp_path, at_sample="\n".join(FAILURES))
    assert (done.returncode, "295 rows" in done.stdout) == (0, True), done.stderr
    rejects = (tmp_path / "out/rejects.tsv").read_text()
    assert [text for text in FAILURES.values() if f"{text}\trejected\n" not in rejects] == []


def test_dataset_that_ends_its_process_rejects_only_its_sample(tmp_path: Path) -> None:
    done = build(tmp_path, at_sample="os._exit(0)")
    assert (done.returncode, "299 rows" in done.stdout) == (0, True), done.stderr
    assert "the labels of 1 sample are unknown (first mine:images[200], see rejects.tsv); if only these" in done.stderr
    rejects = (tmp_path / "out/rejects.tsv").read_text()
    assert rejects.endswith("200\tthe decoder died with exit status 0, 2 times\trejected\n")


@pytest.mark.parametrize("where", ["at_import", "at_call"])
def test_module_or_function_that_exits_is_named(tmp_path: Path, where: str) -> None:
    done = build(tmp_path, **{where: "sys.exit(0)"})
    assert_fails(done, 1, "raised SystemExit: 0; reproduce it with: python -c 'import mine")


ENDS = {
    "os._exit(0)": "ended early (exit status 0)",
    "import signal; signal.alarm(1); signal.pause()": "crashed (signal 14, SIGALRM)",
    "os.closerange(0, 1000)": "crashed (exit status 1",  # or 120, because standard error cannot be flushed
}


@pytest.mark.parametrize(("where", "code"), [("at_call", "os._exit(0)"), *(("at_import", code) for code in ENDS)])
def test_module_that_ends_its_process_is_named(tmp_path: Path, where: str, code: str) -> None:
    done = build(tmp_path, **{where: code})
    assert_fails(done, 1, f"mine:images {ENDS[code]}", "; find out why in Python: import mine, and call images\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("code", ["os._exit(0)", *(pytest.param(one, marks=pytest.mark.long) for one in [*ENDS][1:])])
def test_map_that_ends_each_worker_at_its_import_is_named(tmp_path: Path, code: str) -> None:
    make_tree(tmp_path / "src")
    (tmp_path / "maps.py").write_text(
        f"import os\nif 'ENDS' in os.environ:\n    {code}\ndef same(pixels, sample):\n    return pixels\n"
    )
    prep_process("plan", "imagenet", "src", "out", "--size", 8, "--map", "maps:same", cwd=tmp_path)
    done = prep_process("work", "out", "--workers", 1, cwd=tmp_path, ENDS="1")
    assert (done.returncode, f"prep: error: the process that runs maps:same {ENDS[code]}" in done.stderr) == (1, True)
    assert done.stderr.endswith("; find out why in Python: import maps, and call same\n")


@pytest.mark.parametrize("then", ["", "; mine = [open(os.devnull) for _ in range(30)]"])
def test_module_that_closes_files_is_named(tmp_path: Path, then: str) -> None:
    done = build(tmp_path, at_import=f"os.closerange(3, 1000){then}")
    assert_fails(done, 1, "importing mine raised ClosedFiles: user code")


def test_code_that_closes_files_changes_neither_the_folder_nor_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        with user_code("closing"):
            os.close(0)
            os.chdir("/")

    monkeypatch.chdir(tmp_path)
    saved = os.dup(0)
    before = os.listdir("/proc/self/fd")
    try:
        with pytest.raises(ClosedFiles):
            run()
    finally:
        os.dup2(saved, 0)
    assert (os.listdir("/proc/self/fd"), os.getcwd()) == (before, str(tmp_path))
    os.close(saved)


def test_exit_code_is_that_of_the_command_whatever_a_dataset_does_at_exit(tmp_path: Path) -> None:
    done = build(tmp_path, at_import="import atexit; atexit.register(os._exit, 3)")
    assert (done.returncode, "300 rows" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("name", "send"),
    [
        *(("SIGINT", os.killpg), ("SIGTERM", os.kill), ("SIGKILL", os.kill)),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("SIGTERM", os.killpg), ("SIGXCPU", os.kill))),
    ],
)
def test_signal_to_the_command_ends_code_of_the_user(
    tmp_path: Path, name: str, send: Callable[[int, int], None]
) -> None:
    os.mkfifo(tmp_path / "here")
    (tmp_path / "mine.py").write_text("import os, signal\nopen('here', 'w').close()\nsignal.pause()\n")
    words = [sys.executable, "-m", "decodeonce.cli", "build", "dataset", "mine:images", "out"]
    command = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    (tmp_path / "here").read_text()
    send(command.pid, getattr(signal, name))
    _, text = command.communicate()  # ends when the child has ended, too
    if name == "SIGKILL":
        assert (command.returncode, text) == (-9, "")
    else:
        again = "run the same command again; builds and staging then resume"
        assert (command.returncode, text) == (75, f"prep: stopped: {name}; {again}\n")


def test_sigusr1_to_the_command_ends_it_after_the_current_blocks(tmp_path: Path) -> None:
    (tmp_path / "image.jpg").write_bytes(jpeg(30, 20))
    end = "import signal; os.kill(int(os.environ['COMMAND']), signal.SIGUSR1)"
    remember = "os.environ.setdefault('COMMAND', str(os.getppid()))"
    (tmp_path / "mine.py").write_text(dataset(end, at_import=remember))
    flags = ("--size", 256, "--workers", 1, "--shuffle-seed", "none")
    done = prep_process("build", "dataset", "mine:images", "out", *flags, cwd=tmp_path)
    assert done.returncode == 75, done.stderr
    assert "stopped: SIGUSR1: stopped after the current blocks" in done.stderr


def test_map_that_exits_rejects_its_image(tmp_path: Path) -> None:
    make_tree(tmp_path / "src")
    (tmp_path / "maps.py").write_text(
        "import sys\ndef once(pixels, sample):\n    return sys.exit(3) if sample.label == 1 else pixels\n"
    )
    flags = ("--size", 8, "--workers", 1, "--map", "maps:once", "--max-bad", "100%")
    done = prep_process("build", "imagenet", "src", "out", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "maps:once: SystemExit: 3\trejected" in (tmp_path / "out/rejects.tsv").read_text()


def test_dataset_may_change_its_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "elsewhere/deep/image.jpg").write_bytes(jpeg(30, 20))
    sample = "os.chdir('deep') if Path('deep').exists() else os.chdir('../..')"
    done = build(tmp_path, at_import="os.chdir('elsewhere')", at_call="os.chdir('deep')", at_sample=sample)
    assert (done.returncode, "300 rows" in done.stdout) == (0, True), done.stderr
    assert (tmp_path / "out/store.json").exists()


def test_map_that_changes_its_folder_does_not_change_that_of_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "classes.txt").write_text("cat\n")
    (tmp_path / "maps.py").write_text(
        "import os\nos.chdir('elsewhere')\ndef same(pixels, sample):\n"
        "    assert os.path.basename(os.getcwd()) == 'elsewhere'\n    return pixels\n"
    )
    done = build(tmp_path, "--map", "maps:same", "--classes", "classes.txt", at_sample="raise ValueError")
    assert (done.returncode, "299 rows" in done.stdout) == (0, True), done.stderr


def test_map_may_change_its_folder_while_a_block_is_written(tmp_path: Path) -> None:
    make_tree(tmp_path / "src", classes=4, per_class=30)
    (tmp_path / "elsewhere/out").mkdir(parents=True)
    (tmp_path / "elsewhere/out/store.json").write_text("of another store")
    code = (
        "import os, time\ndef moved(pixels, sample):\n    os.chdir(FOLDER)\n    time.sleep(0.01)\n    return pixels\n"
    )
    (tmp_path / "maps.py").write_text(f"FOLDER = {str(tmp_path / 'elsewhere')!r}\n{code}")
    flags = ("--size", 512, "--workers", 2, "--map", "maps:moved")  # a block a row
    done = prep_process("build", "imagenet", "src", "out", *flags, cwd=tmp_path)
    assert (done.returncode, "120 rows" in done.stdout) == (0, True), done.stderr
    assert (tmp_path / "elsewhere/out/store.json").read_text() == "of another store"


def test_what_a_dataset_prints_is_no_output_of_the_command(tmp_path: Path) -> None:
    noise = "print('noise')"
    done = build(tmp_path, at_import=noise, at_call=noise, at_sample=noise)
    assert ("noise" in done.stdout, "noise" in done.stderr, "300 rows" in done.stdout) == (False, True, True)


LEFT = {
    "process": "import time; os.fork() or (os.closerange(0, 3), time.sleep(60), os._exit(0))",
    "thread": "import threading, time; threading.Thread(target=time.sleep, args=[60]).start()",
}


@pytest.mark.parametrize(
    ("left", "where"),
    [
        *(("process", "at_call"), ("thread", "at_sample")),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("process", "at_sample"), ("thread", "at_call"))),
    ],
)
def test_what_a_dataset_leaves_running_is_not_waited_for(tmp_path: Path, where: str, left: str) -> None:
    before = time.monotonic()
    done = build(tmp_path, **{where: LEFT[left]})
    assert (done.returncode, "300 rows" in done.stdout) == (0, True), done.stderr
    assert time.monotonic() - before < 40


def test_dataset_without_memory_stops_the_build(tmp_path: Path) -> None:
    done = build(tmp_path, at_sample="raise MemoryError")
    assert (done.returncode, done.stderr.count("\n")) == (75, 1)
    assert done.stderr.startswith("prep: stopped: 200: out of memory; run the same command again")


def test_dataset_of_too_many_samples_is_refused(tmp_path: Path) -> None:
    done = build(tmp_path, at_call="Images.__len__ = lambda self: 1 << 40")
    assert_fails(done, 1, "mine:images: len() is 1,099,511,627,776, expected at most 1,000,000,000")


def test_names_that_are_not_unicode_are_refused(tmp_path: Path) -> None:
    done = build(tmp_path, at_call=r"Images.classes = ['a\ud800']")
    assert_fails(done, 1, r"the classes of mine:images: 'a\ud800' is not valid Unicode; correct it")


def test_user_code_follows_a_program_that_changes_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name / "deep").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        for expected in (tmp_path / name, tmp_path / name / "deep"):
            with user_code():
                assert Path.cwd() == expected
                os.chdir(tmp_path / name / "deep")
        assert Path.cwd() == tmp_path / name
