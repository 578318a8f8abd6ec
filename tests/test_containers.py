"""The container recipes agree, and job scripts can be changed to run in a container (docs/start/install.md)."""

import re
import subprocess
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from decodeonce.prep.jobs.base import Chain
from decodeonce.prep.jobs.chain import write_scripts
from decodeonce.prep.jobs.site import read_site, site_names
from tools import setup_env

ROOT = Path(__file__).resolve().parent.parent
PREP = "/opt/decodeonce/bin/prep"
DOCKERFILE, APPTAINER, INSTALL, IGNORE = (
    (ROOT / name).read_text()
    for name in ("containers/Dockerfile", "containers/decodeonce.def", "containers/install.sh", ".dockerignore")
)


def test_recipes_copy_the_same_files_and_these_are_in_the_build_context() -> None:
    copied = {name for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE) for name in line.split()}
    assert copied == set(re.findall(r"^    (\S+) /src/\S*$", APPTAINER, re.MULTILINE))
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {name.partition("/")[0] for name in copied} == set(re.findall(r"^!(.+)$", IGNORE, re.MULTILINE))


def test_recipes_install_the_same_packages_and_all_that_pillow_simd_needs() -> None:
    build, packages = re.findall(r'^ARG (?:BUILD_)?PACKAGES="(.+)"$', DOCKERFILE, re.MULTILINE)
    assert [build, packages] == re.findall(r'^    (?:build|packages)="(.+)"$', APPTAINER, re.MULTILINE)
    dependencies = [*setup_env.REQUIRED, *setup_env.OPTIONAL.values()]
    assert {name for dependency in dependencies for name in dependency.debian.split()} <= set(build.split())


def test_all_packages_except_those_of_a_base_image_are_pinned_there() -> None:
    [pinned] = re.findall(r"grep -E '\^\((.+)\)==' constraints\.txt", INSTALL)
    required = [Requirement(line) for line in requires("decodeonce") or ()]
    extras = ("", "prep-simd", "parquet")
    wanted = {one.name for one in required if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)}
    assert wanted - {"jinja2", "numpy", "pillow", "torch"} <= set(pinned.split("|"))


@pytest.mark.parametrize("name", site_names())
def test_job_scripts_can_be_changed_to_run_in_container(name: str, tmp_path: Path) -> None:
    [change] = re.findall(r"^sed -i '(s#.*#)' \S+$", (ROOT / "docs" / "start" / "install.md").read_text(), re.MULTILINE)
    site = read_site(name)
    submit = write_scripts(
        tmp_path / "OUT", site, Chain(tasks=2, cpus=8, nodes=2, seconds=3600), [[PREP, "x"]] * 3, tmp_path
    )
    scripts = [path for path in submit.parent.iterdir() if path != submit]
    assert len(scripts) == 3
    subprocess.run(["sed", "-i", change, *scripts], check=True)
    for script in scripts:
        last = script.read_text().splitlines()[-1]
        assert last.endswith(f" apptainer exec --bind /scratch /images/decodeonce.sif {PREP} x")
        assert last.count(PREP) == 1
    assert PREP not in submit.read_text()
