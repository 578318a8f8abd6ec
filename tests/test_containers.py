"""Job scripts can be changed to run in a container, as docs/start/install.md says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from decodeonce.prep.jobs import Chain, read_site, site_names, write_scripts

ROOT = Path(__file__).resolve().parent.parent
PREP = "/opt/decodeonce/bin/prep"


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
