"""The jobs of `prep submit kubernetes`: their schema, and their commands, which run here as in pods."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import prep
from tests.images import make_tree, tree_bytes
from tests.packages import NOT_DEV

FLAGS = ["--tasks", "2", "--cpus", "1", "--image", "example.org/me/decodeonce:1", "--claim", "data", "--mem", "1Gi"]


def written_jobs(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Write the jobs of a build in `folder`, mounted where it is; return the three jobs."""
    yaml = pytest.importorskip("yaml", reason=NOT_DEV.format("kubernetes-validate"))
    done = prep("submit", "kubernetes", "build", *words, *FLAGS, "--mount", str(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("to submit them, run: kubectl apply -f a_store.yaml\n")
    return list(yaml.safe_load_all((folder / "a_store.yaml").read_text()))


def test_jobs_match_the_published_schema(tmp_path: Path) -> None:
    jobs = written_jobs(tmp_path, "imagenet", "not here", "a_store", "--max-bad", "1%")
    validate = pytest.importorskip("kubernetes_validate", reason=NOT_DEV.format("kubernetes-validate")).validate
    for job in jobs:
        validate(job, "1.30", strict=True)
    plan, work, finish = (job["spec"] for job in jobs)
    assert (work["completionMode"], work["completions"], work["parallelism"]) == ("Indexed", 2, 2)
    assert "completions" not in {**plan, **finish}
    commands = [spec["template"]["spec"]["containers"][0]["command"] for spec in (plan, work, finish)]
    assert commands == [
        ["prep", "plan", "imagenet", "not here", "a_store", "--max-bad", "1%"],
        ["prep", "work", "a_store", "--tasks", "2", "--workers", "1", "--max-bad", "1%", "--on-bad", "reject"],
        ["prep", "finish", "a_store", "--max-bad", "1%"],
    ]


def pods(jobs: list[dict[str, Any]]) -> list[tuple[str, dict[str, str]]]:
    """Return a shell command and the variables of each pod."""
    found = []
    for job in jobs:
        spec = job["spec"]["template"]["spec"]
        commands = [one["command"] for one in [*spec.get("initContainers", []), *spec["containers"]]]
        words = [shlex.join(word.replace("$$", "$") for word in command) for command in commands]
        for index in range(job["spec"].get("completions", 1)):
            indexed = {"JOB_COMPLETION_INDEX": str(index)} if "completions" in job["spec"] else {}
            found.append((" && ".join(words), indexed))
    return found


@pytest.mark.long
def test_commands_of_all_pods_at_once_build_the_store(tmp_path: Path) -> None:
    make_tree(tmp_path / "src", classes=3)
    jobs = written_jobs(tmp_path, "imagenet", "src", "a_store")
    programs = {"prep": f'exec {sys.executable} -m decodeonce.cli "$@"', "sleep": "exec /bin/sleep 0.1"}
    for name, command in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    running = [
        subprocess.Popen(["sh", "-c", words], cwd=tmp_path, env={**environ, **indexed})
        for words, indexed in reversed(pods(jobs))  # the plan starts last
    ]
    assert [pod.wait(timeout=120) for pod in running] == [0, 0, 0, 0]
    assert prep("build", "imagenet", "src", "alone", cwd=tmp_path).returncode == 0
    assert tree_bytes(tmp_path / "a_store") == tree_bytes(tmp_path / "alone")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mount", "data"], "mount is 'data', expected an absolute path"),
        (["--claim", "My claim"], "claim is 'My claim', expected the name of a PersistentVolumeClaim"),
        (["--mem", "much"], "mem is 'much', expected a number and a unit, such as 64Gi"),
    ],
)
def test_invalid_flags_are_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    done = prep("submit", "kubernetes", "build", "imagenet", "src", "out", *FLAGS, *flags, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []
