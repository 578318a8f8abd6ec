"""The container recipes agree with each other, with the project and with the documentation."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from decodeonce.prep.jobs import Chain, read_site, site_names, write_scripts
from tools import setup_env

ROOT = Path(__file__).resolve().parent.parent
PREP = "/opt/decodeonce/bin/prep"


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile as (keyword, arguments)."""
    text = re.sub(r"^#.*\n", "", (ROOT / "containers" / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", "").splitlines() if line]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def arguments() -> dict[str, str]:
    """Return the defaults of the ARG instructions of the Dockerfile."""
    found = [rest.partition("=") for word, rest in instructions() if word == "ARG"]
    return {name: value.strip('"') for name, _, value in found}


def apptainer_sections() -> dict[str, str]:
    """Return the sections of the Apptainer recipe by name. The lines above the first section are under ""."""
    parts = re.split(r"^%(\w+)\n", (ROOT / "containers" / "decodeonce.def").read_text(), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def copied() -> set[str]:
    """Return the files and folders that the Dockerfile copies from the sources."""
    rests = [rest.split() for word, rest in instructions() if word == "COPY" and not rest.startswith("--from")]
    return {name for *names, _ in rests for name in names}


def test_copied_files_exist_and_are_in_build_context() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert "*" in rules
    assert all((ROOT / name).exists() for name in copied())
    assert allowed == {name.partition("/")[0] for name in copied()}


def test_dockerfile_and_apptainer_recipe_agree() -> None:
    apptainer = apptainer_sections()
    assert {line.split()[0] for line in apptainer["files"].splitlines() if line} == copied()
    defaults = dict(line.strip().split("=", 1) for line in apptainer["arguments"].splitlines() if line)
    assert defaults == {name: arguments()[name] for name in ("MARCH", "EXTRAS", "TORCH_INDEX")}
    assert f'build="{arguments()["BUILD_PACKAGES"]}"' in apptainer["post"]
    assert f'packages="{arguments()["PACKAGES"]}"' in apptainer["post"]
    assert arguments()["BASE"].endswith(re.findall(r"^From: (\S+)$", apptainer[""], re.MULTILINE)[0])
    call = "sh containers/install.sh"
    assert call in apptainer["post"]
    assert [rest for word, rest in instructions() if word == "RUN" and call in rest]


def test_build_dependencies_of_pillow_simd_are_installed() -> None:
    dependencies = [*setup_env.REQUIRED, *setup_env.OPTIONAL.values()]
    wanted = {package for dependency in dependencies for package in dependency.debian.split()}
    assert wanted <= set(arguments()["BUILD_PACKAGES"].split())


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
