"""The commands of `prep`: exit codes, one-line errors, JSON, signals."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import decodeonce
from decodeonce import cli
from decodeonce.cli import doctor
from decodeonce.cli.output import _kind_of
from decodeonce.prep.building.plan import allowed_rejects
from decodeonce.prep.building.pool import WorkSettings
from decodeonce.prep.processes import child
from decodeonce.store.table import REJECT_COLUMNS, Reject, line, reject_line
from tests.command import assert_fails, kill_when, prep, prep_after, printed
from tests.images import encoded, jpeg, make_image, make_tree, tree_bytes
from tests.store.signing import damage_rows, flip_row, replace_file, resign
from tests.stores import make_store, random_images


@pytest.fixture(scope="module")
def store(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "train.store"
    shown = printed("build", "imagenet", tree, out, "--size", 24)
    found = f"{tree}: class folders in train, 3 classes"
    summary = rf"{out}: 15 rows in 3 classes, 30\.02 KB, written in [\w ]+, [\d,]+ images/s; next: prep info {out}\n"
    assert re.fullmatch(f"{found}\n{summary}", shown)
    return out


@pytest.mark.parametrize("name", ["prep", "decodeonce"])
def test_command_is_shown_under_name_it_was_called_by(name: str) -> None:
    called = f"/usr/bin/{name}"
    assert prep("--version", called=called).stdout == f"{name} {decodeonce.__version__}\n"
    shown = prep("stage", "--help", called=called).stdout
    assert shown.startswith(f"Usage: {name} stage ")
    assert f"\n  srun --ntasks-per-node=1 {name} stage train.store /local/part\n" in shown
    assert prep("biuld", called=called).stderr.endswith(f"(see {name} --help)\n")


def test_failure_is_one_line_with_exit_code_1(tree: Path, store: Path, tmp_path: Path) -> None:
    assert_fails(prep("build", "imagenet", tmp_path / "nowhere", tmp_path / "out"), 1, "nowhere", "No such file")
    assert_fails(prep("build", "imagenet", tree, store), 1, "finished store")
    assert_fails(prep("build", "imagenet", tree, "/proc/out"), 1, "/proc/out")
    assert_fails(prep("build", "imagenet", tree, tmp_path / "out", "--split", "val"), 1, "no val split of ImageNet")
    assert_fails(prep("info", tmp_path), 1, "not a store")
    assert_fails(prep("finish", tmp_path), 1, "no plan here")
    for command in ("status", "work", "finish"):
        assert_fails(prep(command, "nosuch", cwd=tmp_path), 1, "error: nosuch: no such folder; run `prep plan` or")
    assert not (tmp_path / "out").exists()


def test_build_and_info_say_why_images_were_rejected(tmp_path: Path) -> None:
    for name, data in (("photos/{}.jpg", jpeg()), ("masks/{}.png", encoded(make_image(60, 40, mode="L"), "PNG"))):
        (tmp_path / name).parent.mkdir()
        for number in range(10):
            (tmp_path / name.format(number)).write_bytes(data)
    for number in (0, 3):
        (tmp_path / f"photos/{number}.jpg").write_bytes(jpeg()[: -200 - number])
    for name, data in (("photos/1.jpg", b"<html>"), ("photos/2.jpg", b""), ("masks/4.png", b""), ("masks/5.png", b"x")):
        (tmp_path / name).write_bytes(data)
    reasons = "2 truncated, 1 an HTML page instead of the image, 1 empty file"
    flags = ("--no-labels", "--size", 8, "--max-bad", "100%")
    done = prep("build", "folder", tmp_path / "photos", tmp_path / "plain", *flags)
    assert f"{tmp_path}/plain: 4 of 10 images were rejected ({reasons})" in done.stdout
    shown = prep("info", tmp_path / "plain").stdout
    assert f"4 of 10 images were rejected ({reasons})" in shown
    paired = (*flags, "--paired", f"mask={tmp_path / 'masks'}")
    done = prep("build", "folder", tmp_path / "photos", tmp_path / "out", *paired)
    why = f"{reasons}, 1 mask: empty file, 1 for other reasons"
    assert f"{tmp_path}/out: 6 of 10 images were rejected ({why}); see rejects.tsv\n" in done.stdout
    whole = (*flags, "--on-damaged", "keep-truncated")
    assert prep("build", "folder", tmp_path / "photos", tmp_path / "all", *whole).returncode == 0
    shown = prep("info", tmp_path / "all").stdout
    assert "2 of 10 images were rejected (1 an HTML page instead of the image, 1 empty file) and 2 unusual" in shown
    assert "--on-damaged keep-truncated, " in shown


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("truncated: image file is truncated (3 bytes not processed)", "truncated"),
        ("mask: truncated: no end", "mask: truncated"),
        ("package.maps:f: ValueError: no", "package.maps:f: ValueError"),
        ("my boxes.json: bbox is [1, 2, 3], expected 4 numbers", "bbox is [1, 2, 3], expected 4 numbers"),
        ("DICOM, which is not supported: convert it", "DICOM"),
    ],
)
def test_reasons_are_counted_without_their_details(reason: str, kind: str) -> None:
    assert _kind_of(reason, {"mask"}) == kind


def test_few_damaged_images_do_not_fail_and_higher_max_bad_resumes_if_more_do(tmp_path: Path) -> None:
    tree, out = make_tree(tmp_path / "src"), tmp_path / "out"
    images = sorted((tree / "train").rglob("*.JPEG"))
    for image in images[:2]:
        image.write_bytes(image.read_bytes()[:-200])
    command = ("build", "folder", tree / "train", out, "--size", 8)
    assert f"{out}: 2 of {len(images)} images were rejected (2 truncated); see rejects.tsv\n" in prep(*command).stdout
    assert (out / "rejects.tsv").read_text().count("truncated") == 2
    shutil.rmtree(out)
    images[2].write_bytes(b"")
    assert_fails(prep(*command), 1, f"3 of {len(images)} images are rejects, --max-bad auto allows 2")
    status = prep("status", out)
    assert "n00000000_0.JPEG: truncated" in status.stdout
    assert f"prep finish {out} --max-bad 3, if you accept these rejects\n" in status.stdout
    assert json.loads(prep("status", out, "--json").stdout)["rejects"][0]["action"] == "rejected"
    assert_fails(prep(*command[:-1], 9), 1, "--size is 9, the plan says ")
    assert prep(*command, "--max-bad", 3).returncode == 0


def test_printed_commands_keep_the_flags_of_the_user_and_finish_a_build(tmp_path: Path) -> None:
    (images := tmp_path / "images").mkdir()
    for number in range(10):
        (images / f"{number}.jpg").write_bytes(jpeg(20, 20, seed=number) if number > 2 else b"no image")

    def plan(out: str, *flags: object) -> str:
        words = ["folder", "images", f"./{out}", "--no-labels", "--size", 8, "--max-bad", "30%", *flags]
        return printed("plan", *words, cwd=tmp_path).rpartition("; next: ")[2].strip()

    def follow(commands: str) -> str:
        shown = ""
        for command in commands.strip().split(" && "):
            shown = printed(*shlex.split(command)[1:], cwd=tmp_path)
        return shown

    assert plan("x", "--on-bad", "fail") == "prep work x --on-bad fail --max-bad 30%"
    assert plan("-it's a", "--workers", 1) == "prep work './-it'\"'\"'s a' --workers 1 --max-bad 30%"
    text = prep("finish", "./-it's a", "--max-bad", "30%", cwd=tmp_path).stderr
    assert "7 rows in 1 class" in follow(text.partition("run: ")[2])
    after_work = follow(plan("y", "--workers", 1))
    assert "7 rows in 1 class" in follow(after_work.rpartition("run: ")[2])
    plan("z")
    [status] = re.findall("or see `(.*)`", prep("info", "z", cwd=tmp_path).stderr)
    with pytest.raises(AssertionError, match="to leave them out, run the same command with --max-bad 3"):
        follow(re.search("next +(.*)", follow(status))[1])  # type: ignore[index]
    assert "7 rows" in follow(re.search("next +(.*), if", follow(status))[1])  # type: ignore[index]


@pytest.mark.parametrize(
    ("images", "allowed"), [(1, 1), (10, 1), (11, 2), (99, 10), (101, 10), (10_999, 10), (1_281_167, 1281)]
)
def test_number_of_rejects_allowed_by_default(images: int, allowed: int) -> None:
    assert allowed_rejects(WorkSettings().max_bad, images) == allowed


def test_work_gets_task_from_job_array_and_launcher(
    tree: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert prep("plan", "imagenet", tree, out, "--size", 24).returncode == 0
    assert_fails(prep("work", out, "--tasks", 4), 2, "the 4 tasks this is: found no launcher", "--task I --tasks N")
    assert_fails(prep("work", out, "--task", 1), 2, "--task requires --tasks")
    monkeypatch.setenv("PBS_ARRAY_INDEX", "1")
    assert_fails(prep("work", out), 2, "PBS_ARRAY_INDEX=1, but no variable gives the size of the array")
    assert (doctor.task().found, doctor.task().level, doctor.rank().level) == ("unknown", "warn", "ok")
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    lines = prep("work", out, "--tasks", 4).stdout.splitlines()
    assert lines[0] == f"{out}: task 3 of 4 (PBS_ARRAY_INDEX=1, rank 1 of 2 (PMI))"
    assert lines[1] == f"{out}: task 3 of 4 is done; after all tasks, run: prep finish {out}"
    monkeypatch.delenv("PBS_ARRAY_INDEX")
    assert doctor.task().found == "task 1 of 2 (PMI)"
    monkeypatch.delenv("PMI_RANK")
    assert prep("work", out).stdout.startswith(f"{out}: task 0 of 1 (all remaining blocks)")
    assert prep("finish", out).returncode == 0
    assert "already finished" in prep("work", out).stdout
    assert tree_bytes(out) == tree_bytes(store)


def test_build_refuses_several_ranks(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    for command in ("build", "plan"):
        result = prep(command, "imagenet", tree, tmp_path / "out")
        assert_fails(
            result, 2, "this is rank 1 of 2 (PMI), but this command must run in one process; run prep plan once"
        )
    monkeypatch.setenv("PMI_RANK", "x")
    assert_fails(prep("build", "imagenet", tree, tmp_path / "out"), 2, "PMI_RANK")
    assert list(tmp_path.iterdir()) == []


def test_build_starts_worker_early_and_kills_unused_one() -> None:
    before = set(child.alive)
    with cli._first_worker(["build", "folder", "src", "out"]):
        (started,) = child.alive - before
        assert os.path.exists(f"/proc/{started}")
    assert child.alive == before
    assert not os.path.exists(f"/proc/{started}")
    for words in (["build", "folder", "--help"], ["convert", "a", "b", "--dry-run"], ["ls", "a"], []):
        with cli._first_worker(words):
            assert child.alive == before


def test_val_keeps_source_order_by_default(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", split="val")
    prep("build", "imagenet", tree, tmp_path / "out", "--split", "val", "--size", 8)
    sources = [line.split("\t")[3] for line in prep("ls", tmp_path / "out").stdout.splitlines()[1:]]
    assert sources == sorted(sources)


def test_info_and_verify_print_text_and_json(store: Path, tmp_path: Path) -> None:
    lines = prep("info", store).stdout.splitlines()
    shown = dict(re.split("  +", one, maxsplit=1) for one in lines)
    assert (shown["rows"], shown["rejects"]) == ("15 of 24x24x3 uint8", "no image was rejected")
    assert re.fullmatch(r"[\d.]{3,5}, [\d.]{3,5}, [\d.]{3,5}", shown["pixel mean"])
    assert shown["recipe"].startswith("--size 24, --format npy, --exif ignore, --filter bilinear, --fit crop, ")
    assert shown["source"] == "kind imagenet, split train"
    assert not {"staged part", "decoder crashes"} & shown.keys()
    assert not re.search("None|_", "".join(lines).replace(str(store), ""))
    info = json.loads(prep("info", store, "--json").stdout)
    assert (info["rows"], info["shape"], info["classes"]) == (15, [24, 24, 3], 3)
    intact = {"ok": True, "rows": 15, "bad_rows": [], "unknown_rows": [], "bad_files": []}
    assert json.loads(prep("verify", store, "--json").stdout) == intact
    damaged = make_store(tmp_path / "damaged", random_images(9), shard_rows=5)
    flip_row(damaged, 6)
    result = prep("verify", damaged, "--json")
    assert result.returncode == 1
    expected = {"ok": False, "rows": 9, "bad_rows": [[6, 6]], "unknown_rows": [], "bad_files": []}
    assert json.loads(result.stdout) == expected
    assert "row 6: damaged" in prep("verify", damaged).stderr


def test_info_shows_rows_per_class_rejects_and_bytes(tmp_path: Path) -> None:
    labels = np.array([0, 0, 0, 0, 1, 2, 2], np.int64)
    store = make_store(tmp_path / "store", random_images(7, shape=(2, 2, 3)), labels)
    actions = ("rejected", "kept", "kept")
    rejects = [line(REJECT_COLUMNS), *(reject_line(Reject("a.jpg", "why", action)) for action in actions)]
    replace_file(store, "rejects.tsv", b"".join(rejects))
    resign(store, lambda facts: facts["classes"][1].update(description="lion, king of beasts"))
    shown = dict(re.split("  +", one, maxsplit=1) for one in prep("info", store).stdout.splitlines())
    assert shown["rows per class"] == "smallest 1 (class1 lion), median 2, largest 4 (class0 the class 0)"
    assert shown["rejects"] == "1 of 8 images was rejected (1 why) and 2 unusual images were kept"
    assert shown["size"] == "4.18 KB (4.14 KB as yuv420) in 1 npy shard"
    found = json.loads(prep("info", store, "--json").stdout)
    assert found["rows_per_class"] == {
        "smallest": {"name": "class1", "description": "lion, king of beasts", "rows": 1},
        "median": 2.0,
        "largest": {"name": "class0", "description": "the class 0", "rows": 4},
    }
    assert found["rejects"] == {"rejected": 1, "left out": 0, "kept": 2}
    assert found["bytes"] == 4180


def test_info_counts_box_classes_and_names_damaged_file(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a", random_images(6), columns={"box_labels": np.zeros((6, 2), "<i4")})
    shown = prep("info", store).stdout
    assert ("\nrows per class  2 in each\n" in shown, "box classes" in shown) == (True, False)
    resign(store, lambda facts: facts.update(box_classes=["cat", "dog"]))
    assert "\nbox classes     2\n" in prep("info", store).stdout
    for name in ("labels.npy", "rejects.tsv"):
        (store / name).write_bytes((store / name).read_bytes()[:-1] + b"?")
        assert_fails(prep("info", store), 1, f"{store}/{name}: damaged: ", f"prep repair {store}")


def test_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", random_images(5000, shape=(1, 1, 3)))  # more lines than a pipe holds
    command = f"{sys.executable} -m decodeonce.cli ls {store} | head -n 1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("row\tlabel")
    assert result.stderr == ""


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """A pipe that no process reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_exit_code_is_that_of_the_result_if_nobody_reads_its_json(tmp_path: Path, closed_pipe: int) -> None:
    tree, out = make_tree(tmp_path / "src"), tmp_path / "out"

    def run(*words: object) -> tuple[int, str]:
        command = [sys.executable, "-m", "decodeonce.cli", *map(str, words), "--json"]
        done = subprocess.run(command, stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stderr

    code, text = run("build", "imagenet", tree, out, "--workers", 1, "--size", 8)
    assert (code, "written in" in text) == (0, True), text
    damage_rows(out, 3)
    code, text = run("verify", out)
    assert (code, f"prep: error: {out}: row 3: damaged\n" in text) == (1, True)


def test_build_whose_output_nobody_reads_is_not_called_complete(tmp_path: Path, closed_pipe: int) -> None:
    words = ["build", "imagenet", str(make_tree(tmp_path / "src")), str(tmp_path / "out"), "--workers", "1"]
    command = [sys.executable, "-m", "decodeonce.cli", *words, "--size", "8", "--log", str(tmp_path / "log")]
    ended = subprocess.run(command, stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 75
    assert ended.stderr.startswith("prep: stopped: the program that read the output has ended; ")
    assert "run the same command again" in ended.stderr
    assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["event"] == "stopped"
    assert prep(*words, "--size", "8").returncode == 0


def test_warnings_are_printed_once_and_never_stop_a_build(tmp_path: Path, closed_pipe: int) -> None:
    (tmp_path / "mine.py").write_text(
        "import logging, numpy\n"
        "logging.basicConfig()  # of a user, whose handler would print the warning again\n"
        "class Numbers:\n"
        "    classes = ['a', 'b', 'unused']\n"
        "    def __len__(self): return 6\n"
        "    def __getitem__(self, index): return numpy.full((8, 8, 3), index, 'uint8'), index % 2\n"
    )
    command = [sys.executable, "-m", "decodeonce.cli", "build", "dataset", "mine:Numbers"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shown = subprocess.run([*command, tmp_path / "a"], env=environ, capture_output=True, text=True, check=True).stderr
    assert shown == (
        "mine:Numbers: 1 of 3 classes have no images (first 2, 'unused')\n"
        f"{tmp_path}/a: 6 of 6 images have at most a quarter of the height and width of 256x256 (the first has 8x8); "
        "a smaller --size stores the same pixels in fewer bytes\n"
    )
    subprocess.run([*command, tmp_path / "b"], env=environ, stderr=closed_pipe, stdout=subprocess.DEVNULL, check=True)
    assert tree_bytes(tmp_path / "b") == tree_bytes(tmp_path / "a")


@pytest.mark.parametrize(
    "signal_", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGUSR1))]
)
def test_signal_stops_build_with_75_and_same_command_resumes(signal_: signal.Signals, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src")
    slow = encoded(make_image(400, 400).resize((3000, 3000)), progressive=True)
    for number in range(3):
        (tree / f"train/n00000001/slow{number}.JPEG").write_bytes(slow)
    command = [sys.executable, "-m", "decodeonce.cli", "build", "imagenet", str(tree), str(tmp_path / "out")]
    command += ["--size", "1024", "--workers", "1", "--log", f"{tmp_path}/logs/"]
    journals = tmp_path / "out/.build/journals"
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and not any(path.stat().st_size for path in journals.glob("*.log")):
        os.sched_yield()
    os.killpg(process.pid, signal_)
    _, message = process.communicate(timeout=30)
    assert process.returncode == 75
    assert message.startswith(f"prep: stopped: {signal_.name}")
    assert (": stopped after the current blocks, " in message) == (signal_ is signal.SIGUSR1)
    assert "run the same command again" in message
    assert message.count("\n") == 1
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    [log] = (tmp_path / "logs").iterdir()
    assert log.name == f"{os.uname().nodename}-{process.pid}.jsonl"
    *before, last = map(json.loads, log.read_text().splitlines())
    assert {event["event"] for event in before} <= {"start", "message", "progress"}
    assert (last["event"], last["exit_code"], f"{last['message']}\n") == ("stopped", 75, message)
    status = json.loads(prep("status", tmp_path / "out", "--json").stdout)
    done = status["rows_done"]
    assert 0 < done < 18
    assert (status["state"], status["rows_per_s"], status["tasks"][0]["state"]) == ("stopped", 0, "stopped")
    shown = prep("status", tmp_path / "out").stdout
    assert shown.startswith(f"state          stopped\nrows done      {done} of 18\n")
    assert f"next           the same command again, or prep work {tmp_path}/out and then prep finish " in shown
    assert f"\nresuming: {done} of 18 rows are already done\n" in printed(*command[3:])
    shown = prep("status", tmp_path / "out").stdout
    assert shown == f"state    finished\nrows     18\nrejects  0\nnext     prep info {tmp_path}/out\n"


@pytest.mark.parametrize("module", ["decodeonce.cli.app", "decodeonce.prep.building.plan"])
def test_signal_during_import_ends_command_with_one_line(module: str, tree: Path, tmp_path: Path) -> None:
    code = kill_when(f"event == 'import' and args[0] == {module!r}", "SIGTERM")
    result = prep_after(code, "build", "imagenet", tree, tmp_path / "out")
    assert result.stderr.startswith("prep: stopped: SIGTERM")
    assert result.stderr.count("\n") == 1
    assert result.returncode == 75


@pytest.mark.long
def test_signal_at_any_moment_of_a_build_ends_it_with_one_line(tree: Path, tmp_path: Path) -> None:
    def build(moment: int) -> subprocess.CompletedProcess[str]:
        """Build, with a SIGINT before the process opens its file number `moment`; print the number left."""
        code = "import atexit\nfrom decodeonce.cli import main\n" + kill_when("event == 'open'", "SIGINT", moment)
        code += "\natexit.register(lambda: print(left))"
        return prep_after(code, "build", "imagenet", tree, tmp_path / str(moment), "-q")

    uninterrupted = build(0)
    assert uninterrupted.returncode == 0
    for share in range(1, 10, 2):
        result = build(-int(uninterrupted.stdout) * share // 10)
        assert result.stderr.startswith("prep: stopped: SIGINT")
        assert (result.stderr.count("\n"), result.returncode) == (1, 75)


def test_signal_after_outcome_does_not_change_it(store: Path) -> None:
    code = "import atexit\natexit.register(os.kill, os.getpid(), signal.SIGTERM)"
    result = prep_after(code, "info", store)
    assert (result.returncode, result.stderr) == (0, "")
    assert "15" in result.stdout


@pytest.mark.parametrize("command", ["build", "plan"])
def test_unexpected_number_of_images_is_refused(tree: Path, tmp_path: Path, command: str) -> None:
    words = [command, "imagenet", tree, tmp_path / "out", "--size", 24]
    for more in ([], ["--dry-run"]):
        result = prep(*words, "--expect", 14, *more)
        assert result.returncode == 1
        assert result.stderr.startswith(f"prep: error: {tree}: 15 images found in 3 classes, but --expect is 14; look")
    assert not (tmp_path / "out").exists()
    assert prep(*words, "--expect", 15).returncode == 0
    message = prep(*words, "--expect", 16).stderr
    assert message.startswith(f"prep: error: {tree}: 15 images found in 3 classes, but --expect is 16; look")
