"""`--json`: standard output is one object with the result of a command, and all text goes to standard error."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from decodeonce import open_store
from tests.command import assert_fails, prep, prep_process, write_program
from tests.images import exif, jpeg, make_tree
from tests.store.signing import damage_rows, overwrite

SHAPE = [16, 16, 3]
PAGE = Path(__file__).parents[2] / "docs/reference/commands.md"
DOCUMENTED = set(re.findall("`([a-z_]+)`", PAGE.read_text("utf-8").split("## JSON results")[1].split("\n## ")[0]))
REJECTED = {"not an image": 1}
KEPT = {"CMYK": 1, "EXIF rotation 6, not applied": 1}
ADVICE = "1 image was stored without the rotation in EXIF; --exif apply rotates them\n"


@pytest.fixture
def pics(tmp_path: Path) -> Path:
    """15 images, of which two are unusual, one is damaged, and one class has no image."""
    root = make_tree(tmp_path / "src") / "train"
    first, second, third, *_ = sorted(root.rglob("*.JPEG"))
    first.write_bytes(b"no picture")
    second.write_bytes(jpeg(mode="CMYK"))
    third.write_bytes(jpeg(exif=exif(6)))
    (root / "empty").mkdir()
    return root


def result(*words: object, code: int = 0, text: str = "") -> dict[str, Any]:
    """Run `prep` with --json; return the object, the only line on standard output. Standard error has the `text`.

    The keys of all commands that have --quiet, too, are documented.
    """
    done = prep(*words, "--json")
    assert done.returncode == code, done.stderr
    assert done.stdout.count("\n") == 1
    assert text in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert words[0] == "info" or found.keys() <= DOCUMENTED
    return found


def facts(path: Path) -> dict[str, Any]:
    """Return what the objects of a store with one shard say about it, from the store and its files."""
    store = open_store(path)
    shard, rows, pixels = (path / store.manifest.shards[0].file).stat().st_size, len(store), store.images.shape[1:3]
    quarter = rows * pixels[0] * pixels[1] * 3 // 4
    return {
        "rows": rows,
        "shape": list(store.images.shape[1:]),
        "dtype": str(store.images.dtype),
        "pixels": "rgb",
        "container": "npy",
        "shards": 1,
        "bytes": shard,
        "bytes_as": {"rgb": shard, "yuv420": shard - 2 * quarter, "bc4": shard - 3 * quarter},
        "classes": len(store.classes),
        "used_classes": len(set(store.labels.tolist())),
        "rejects": {"rejected": 1, "left out": 0, "kept": 2},
        "rejected": REJECTED,
        "kept": KEPT,
        "recipe": json.loads((path / "store.json").read_text())["recipe"],
        "digest": store.manifest.digest,
    }


def test_build_gives_the_facts_of_its_store(pics: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("build", "folder", pics, out, "--size", 16)
    made = result(*words, text=ADVICE)
    assert made.pop("seconds") > 0
    assert made == {"out": str(out), "already_finished": False, "decoded_images": 15, **facts(out)}
    assert (made["rows"], made["shape"], made["classes"], made["used_classes"]) == (14, SHAPE, 4, 3)
    again = result(*words, text=f"{out}: already finished, nothing to do\n")
    assert again.pop("seconds") > 0
    assert again == {**made, "already_finished": True, "decoded_images": 0}
    planned = result(*words, "--dry-run", text="already finished")
    assert planned == result("plan", *words[1:]) == result("finish", out)
    assert planned == {"out": str(out), "already_finished": True, **facts(out)}
    info = result("info", out)
    assert {name: info[name] for name in facts(out)} == facts(out)


def test_dry_run_gives_what_it_prints_as_numbers(pics: Path, tmp_path: Path) -> None:
    flags, out = ("--size", 16, "--max-bad", 0), tmp_path / "out"
    found = result("build", "folder", pics, out, *flags, "--dry-run", text=f"in this sample, {ADVICE}")
    storage = found.pop("storage")
    assert storage.pop("free_bytes") > 0
    assert storage.pop("free_files") is None or found["files"] < 20
    assert storage == {"place": str(tmp_path), "kind": None, "quotas": []}
    store = {"rows": 15, "shape": SHAPE, "classes": 4, "pixels": "rgb", "container": "npy", "shards": 1}
    head = 4096
    sizes: dict[str, object] = {"bytes": head + 15 * 768, "other_bytes": 15 * 200}
    sizes["bytes_as"] = {"rgb": head + 15 * 768, "yuv420": head + 15 * 384, "bc4": head + 15 * 192}
    sample = {"images": 15, "rejected": 1, "kept": KEPT}
    rejects = {"images": 15, "rejected_files": 0, "expected_rejects": 1, "allowed_rejects": 0}
    begin = {"out": str(out), "already_finished": False, "unfinished_build": False, "files": 13}
    assert found == {**begin, **store, **sizes, **rejects, "sample": sample}
    assert not out.exists()
    planned = result("plan", "folder", pics, out, "--size", 16, text="next: prep work")
    assert planned == {"out": str(out), "already_finished": False, "images": 15, "classes": 4, "rows": 15, "blocks": 1}
    assert result("build", "folder", pics, out, *flags, "--dry-run") == {**found, "unfinished_build": True}


def test_steps_of_a_build_and_its_jobs_give_results(
    pics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words = ("submit", "slurm", "build", "folder", pics, out, "--tasks", 2, "--cpus", 1)
    script = tmp_path / "out.jobs/submit.sh"
    assert result(*words, text="to submit them, run: ") == {"out": str(out), "script": str(script), "job_ids": []}
    assert "--json" not in "".join(path.read_text() for path in script.parent.glob("*.*"))
    assert result(*words, "--dry-run")["rows"] == 15
    inside = prep(*words[:2], "--tasks", 2, "--cpus", 1, "--", *words[2:6], "--json")
    assert_fails(inside, 2, "No such option: --json")
    bin_folder = tmp_path / "bin"
    write_program(bin_folder, "sbatch", f"echo line >> {tmp_path}/jobs; echo 7$(wc -l < {tmp_path}/jobs)")
    write_program(bin_folder, "squeue", "echo PENDING")
    write_program(bin_folder, "scontrol", "true")
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    submitted = result(*words, "--submit", text="submitted: 71 72 73; ")
    assert submitted["job_ids"] == ["71", "72", "73"]
    assert prep("plan", "folder", pics, out, "--size", 16).returncode == 0
    assert prep("work", out).returncode == 0
    made = result("finish", out, text="14 rows in 3 of 4 classes")
    assert made == {"out": str(out), "already_finished": False, **facts(out)}


def test_convert_stage_and_repair_give_results(pics: Path, tmp_path: Path) -> None:
    store, small, part = (tmp_path / name for name in ("a.store", "small.store", "part"))
    assert prep("build", "folder", pics, store, "--size", 16).returncode == 0
    found = result("convert", store, small, "--size", 8, "--dry-run", text="; nothing was written\n")
    planned = {
        **{"out": str(small), "already_finished": False, "rows": 14, "shape": [8, 8, 3], "classes": 4},
        **{"pixels": "rgb", "container": "npy", "shards": 1, "bytes": 4096 + 14 * 192},
        "bytes_as": {"rgb": 4096 + 14 * 192, "yuv420": 4096 + 14 * 96, "bc4": 4096 + 14 * 48},
        "sample": {"images": 14, "rejected": 0, "kept": {}},
    }
    assert {name: found[name] for name in planned} == planned
    for again in (False, True):
        made = result("convert", store, small, "--size", 8)
        assert made.pop("seconds") > 0
        assert made["bytes"] == found["bytes"]
        assert made == {"out": str(small), "already_finished": again, **facts(small)}
        planned = result("convert", store, small, "--size", 8, "--dry-run", text="already finished, nothing to do")
        assert planned == {**made, "already_finished": True}
        staged = result("stage", store, part, "--node-rank", 1, "--node-count", 4)
        assert staged.pop("seconds") > 0
        rows, copied = open_store(part).rows, 0 if again else 4
        assert staged == {
            **{"dest": str(part), "already_finished": again, "first_row": rows.start, "rows": len(rows)},
            **{"copied_rows": copied, "copied_bytes": copied * 768},
        }
    damage_rows(store, 3)
    overwrite(store / "labels.npy", 140, b"damage")
    assert result("verify", store, code=1)["bad_files"] == ["labels.npy"]
    left = result("repair", store, code=1, text=f"prep: error: {store}: row 3: no --from was given; run `prep repair ")
    [sentence] = left.pop("unrepaired")
    assert left == {"ok": False, "rows": 14, "repaired_rows": 0, "repaired_files": ["labels.npy"]}
    assert sentence.startswith(f"{store}: row 3: ")
    whole = {"ok": True, "rows": 14, "repaired_files": [], "unrepaired": []}
    assert result("repair", store, "--from", pics) == {**whole, "repaired_rows": 1}
    assert result("repair", store, text="nothing to repair") == {**whole, "repaired_rows": 0}
    intact = {"ok": True, "rows": 14, "bad_rows": [], "unknown_rows": [], "bad_files": []}
    assert result("verify", store, text=f"{store}: 14 rows intact\n") == intact


def test_failed_command_prints_no_object(pics: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("build", "folder", pics, out, "--max-bad", 0, "--json")
    for extra, code, expected in (
        (("--size", 16), 1, "--max-bad 0 allows 0"),
        (("--size", 24), 1, "--size is 24, the plan says 16"),
        (("--size", "x"), 2, "expected pixels"),
    ):
        done = prep(*words, *extra)
        assert (done.returncode, done.stdout) == (code, "")
        assert expected in done.stderr.splitlines()[-1]
    for command in ("finish none", "convert none x", "stage none x", "repair none"):
        assert_fails(prep(*command.split(), "--json", cwd=tmp_path), 1, "none: no such folder")
    assert not result("verify", tmp_path / "none", code=1, text="none: no such folder")["ok"]


def test_quiet_leaves_only_the_object_and_warnings(pics: Path, tmp_path: Path) -> None:
    shutil.rmtree(pics / "empty")  # a class without images is a warning
    words = ("build", "folder", pics, tmp_path / "out", "--size", 16, "--json", "--quiet")
    done = prep_process(*words)
    rejected = "1 of 15 images was rejected (1 not an image) and 2 unusual images were kept; see rejects.tsv"
    assert (done.returncode, done.stderr) == (0, f"{tmp_path}/out: {rejected}\n{tmp_path}/out: {ADVICE}")
    assert json.loads(done.stdout)["rows"] == 14
    assert prep("verify", tmp_path / "out").stdout.endswith("14 rows intact\n")  # the next command prints text


def test_dataset_that_prints_leaves_one_object(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os\nfrom PIL import Image\n"
        "print('imported')\nos.system('echo called')\n"
        "class Loud:\n"
        "    classes = ['a']\n"
        "    def __len__(self):\n        print('length')\n        return 2\n"
        "    def __getitem__(self, row):\n        print('item')\n        return Image.new('RGB', (8, 8)), 0\n"
    )
    done = prep_process("build", "dataset", "loud:Loud", "out", "--size", 8, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rows"] == 2, done.stderr
    assert {"imported", "called", "length"} < {*done.stderr.splitlines()}
