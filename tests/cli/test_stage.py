"""The command `prep stage`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from decodeonce import open_store
from decodeonce.store import part_rows
from tests.command import assert_fails, kill_when, prep, prep_after, printed
from tests.conftest import COUNT

NODES: list[tuple[tuple[object, ...], dict[str, str], tuple[int, int], str]] = [
    (("--node-rank", 1, "--node-count", 3), {}, (1, 3), "node 1 of 3"),
    (("--rank", 2, "--world-size", 7), {"RANK": "0", "WORLD_SIZE": "2"}, (2, 7), "rank 2 of 7"),
    ((), {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (3, 4), "rank 3 of 4 (Slurm)"),
    ((), {}, (0, 1), "rank 0 of 1 (no launcher)"),
]


@pytest.mark.parametrize("node", NODES)
def test_node_gets_its_rows(store: Path, images: NDArray[np.uint8], tmp_path: Path, node: Any) -> None:
    arguments, variables, share, who = node
    dest = tmp_path / "local/part"
    first, second = printed("stage", store, dest, *arguments, **variables).splitlines()
    rows = part_rows(COUNT, *share)
    assert first == f"{dest}: staging rows {rows[0]}..{rows[-1]} of the {COUNT} rows of {store}, for {who}"
    assert second.startswith(f"{dest}: done, {len(rows) * 144 / 1000:.2f} KB copied in ")
    assert second.endswith(f"; 0 of {len(rows)} rows were already there")
    staged = open_store(dest)
    assert staged.rows == rows
    np.testing.assert_array_equal(staged.images[rows.start : rows.stop], images[rows.start : rows.stop])
    again = printed("stage", store, dest, *arguments, **variables)
    matches = "already staged: names, sizes and headers of its files match"
    assert again.splitlines()[1] == f"{dest}: {matches}; to check its rows, run: prep verify {dest}"


def test_wrong_flags_are_usage_errors(store: Path, tmp_path: Path) -> None:
    def refused(expected: str, *arguments: object, **variables: str) -> None:
        assert_fails(prep("stage", store, tmp_path / "p", *arguments, cwd=None, **variables), 2, expected)

    refused("--rank and --world-size must be given together", "--world-size", 3)
    refused("but not both pairs", "--rank", 0, "--world-size", 2, "--node-rank", 0, "--node-count", 2)
    refused("--rank is -1 and --world-size 2", "--rank", -1, "--world-size", 2)
    refused("RANK is 'x'", RANK="x", WORLD_SIZE="2")
    result = prep("stage", store, tmp_path / "p", "--node-rank", 0, "--node-count", COUNT + 1)
    assert (result.returncode, result.stderr.count("\n"), "no rows to stage" in result.stderr) == (1, 1, True)
    assert list(tmp_path.iterdir()) == []


def test_commands_work_on_staged_part(store: Path, images: NDArray[np.uint8], tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert prep("stage", store, part, "--node-rank", 1, "--node-count", 5).returncode == 0
    info, whole = (json.loads(prep("info", path, "--json").stdout) for path in (part, store))
    assert (info.pop("store"), whole.pop("store")) == (str(part), str(store))
    staged = {"staged_part": True, "first_row": 12, "held_rows": 12}
    assert whole == {**info, "staged_part": False, "first_row": 0, "held_rows": COUNT}
    assert info == {**info, **staged}
    assert prep("verify", part).stdout == f"{part}: 12 rows intact\n"
    assert prep("show", part, "--out", tmp_path / "sheet.png").returncode == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        np.testing.assert_array_equal(np.asarray(sheet)[8:136:16, 8:104:16], images[12])  # enlarged 16 times


def test_signal_stops_stage_with_75_and_same_command_resumes(store: Path, tmp_path: Path) -> None:
    result = prep_after(kill_when("event == 'os.rename'", "SIGTERM", 7), "stage", store, tmp_path / "p")
    message = "prep: stopped: SIGTERM; run the same command again; builds and staging then resume\n"
    assert (result.returncode, result.stderr) == (75, message)
    assert_fails(prep("info", tmp_path / "p"), 1, "run the same `prep stage` again to resume")
    assert prep("stage", store, tmp_path / "p").returncode == 0
    assert prep("verify", tmp_path / "p").returncode == 0
