"""Check every row that finish writes: rejects leave holes, which rows from the end of the store fill."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeonce.build import Progress, Recipe, build, finish
from decodeonce.errors import BuildError, Stopped
from decodeonce.prep.building.journal import FACTS, BlockRecord, Journal, PixelSums, journal_line, summed_lines
from decodeonce.prep.building.plan import Plan, checked_listing, plan_content, read_plan, write_plan
from decodeonce.prep.listing import Scan
from decodeonce.prep.paths import BuildPaths
from decodeonce.sources import Entry, Source, open_imagenet
from decodeonce.store import disk, open_store, verify_store
from decodeonce.store.hashing import row_checksum
from decodeonce.store.manifest import ImageClass
from tests.images import make_tree
from tests.prep.building import build_in_process

COUNT = 400
RECIPE = Recipe(height=64, width=64, shuffle_seed=0, shard_size=2 << 20)  # blocks of 85 rows, two per shard


class _Listed(Source):
    """A source of names only, some with special characters."""

    kind = "folder"

    def arguments(self) -> dict[str, Any]:
        return {"classes": ["plain"]}

    def scan(self) -> Scan:
        ends = (b".jpg", b"\\\n.jpg", b"\xff\t.jpg", "ü.jpg".encode())
        entries = (Entry(b"%d" % k + ends[k % 4], k % 2, k, k) for k in range(COUNT))
        return Scan(entries, tuple(map(ImageClass, ("plain", "tab\tname", "unused"))))


def decode_all(out: Path, rejects: set[int]) -> Plan:
    """Make a plan and write all blocks; each row holds its planned number, except for the rejects."""
    source, paths = _Listed(Path("/nowhere")), BuildPaths(out)
    paths.journals.mkdir(parents=True)
    listing = checked_listing(source)
    write_plan(paths, listing, plan_content(source, listing, RECIPE, {}))
    plan = read_plan(paths)
    journal, size = Journal(paths.journals, 0, 1), plan.recipe.row_bytes
    for block in (plan.blocks[index] for index in range(len(plan.blocks))):
        rows = range(block.first, block.last)
        with open(paths.shard(block.shard, ".npy"), "ab") as shard:
            shard.truncate(block.offset)
            shard.writelines(bytes(size) if row in rejects else pixels(row, size) for row in rows)
        bad = [(row, "bad", "rejected") for row in rows if row in rejects]
        facts = np.zeros(block.rows, FACTS)
        for row in set(rows) - rejects:
            facts[row - block.first] = row_checksum(pixels(row, size)), row, 1000 + row, 2000 + row, 1
        record = BlockRecord(block.index, facts, bad, sums=[0] * 3, squares=[0] * 3)
        journal.append(journal_line(record))
    journal.close()
    return plan


def pixels(row: int, size: int) -> bytes:
    return row.to_bytes(4, "little") * (size // 4)


@settings(max_examples=15)
@given(st.sets(st.integers(0, COUNT - 1), max_size=60) | st.just(set(range(200, COUNT))))
def test_every_row_matches_plan_and_journal(tmp_path_factory: pytest.TempPathFactory, rejects: set[int]) -> None:
    out = tmp_path_factory.mktemp("finish") / "store"
    plan = decode_all(out, rejects)
    entries = plan.samples.entries(0, COUNT)
    kept = COUNT - len(rejects)
    tails = iter([row for row in range(kept, COUNT) if row not in rejects])
    planned = [next(tails) if row in rejects else row for row in range(kept)]
    finish(out, "100%")
    store = open_store(out)
    found = [(s.row, s.label, s.class_name, s.source, s.width, s.height, s.box, s.digest) for s in store.samples]
    assert len(found) == kept
    for row, p in enumerate(planned):
        label, name = entries[p].label, plan.classes[entries[p].label].name
        assert found[row] == (row, label, name, entries[p].text, 1000 + p, 2000 + p, "", f"{p:016x}")
    assert store.labels.tolist() == [entries[p].label for p in planned]
    numbers = np.ascontiguousarray(store.images[...]).reshape(kept, -1)[:, :4].copy().view("<u4").ravel()
    assert numbers.tolist() == planned
    assert verify_store(out).ok


def test_finish_does_not_read_files_replaced_by_another_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network file system, files replaced by another finish are unreadable for a second."""
    real = disk.replace

    def replace(source: Path, dest: Path) -> None:
        real(source, dest)
        if dest.name != "store.json":
            dest.write_bytes(b"")

    whole, out = tmp_path / "whole", tmp_path / "store"
    for folder in (whole, out):
        decode_all(folder, {3, 7})
    expected = finish(whole, "2")
    monkeypatch.setattr(disk, "replace", replace)
    assert finish(out, "2") == expected


# ---- The sums behind a store's mean and standard deviation: they are exact and depend only on the rows


def test_build_whose_plan_disappears_asks_to_be_run_again(tmp_path: Path) -> None:
    source, out = open_imagenet(make_tree(tmp_path / "src", classes=1)), tmp_path / "out"

    def remove_plan(progress: Progress) -> None:
        if progress.rows == progress.total_rows:  # as if another node had finished, which this one does not see yet
            (out / ".build/plan.json").unlink(missing_ok=True)

    with pytest.raises(Stopped, match=r"plan\.json: another process has removed or finished .*; run the same command"):
        build(source, out, Recipe(height=8, width=8), progress=remove_plan)
    with pytest.raises(BuildError, match="no plan here"):
        finish(out)


@pytest.mark.parametrize("height", [1, 31, 32, 63, 64, 95, 256, 1000])
def test_sums_are_exact_at_every_height(height: int) -> None:
    rows = np.random.default_rng(height).integers(0, 256, (5, height, 7, 3), np.uint8)
    rows[0] = 255  # the largest possible sum
    sums, step = PixelSums((height, 7, 3)), max(1, height // 32)
    expected = []
    for row, checksum in zip(rows, [0, 1, 2, 5, 2**64 - 1], strict=True):
        sums.add(row.tobytes(), checksum)
        expected.append(row[checksum % step :: step][: height // step].reshape(-1, 3))
    values = np.concatenate(expected).astype(object)
    assert len(values) == 5 * summed_lines(height) * 7
    assert sums.by_channel() == (values.sum(axis=0).tolist(), (values**2).sum(axis=0).tolist())


def test_mean_and_std_match_rows_and_checksums(tmp_path: Path) -> None:
    """Compute both with NumPy from the finished store, as docs/reference/format.md defines them."""
    make_tree(tmp_path / "src", classes=2, per_class=3)
    source, recipe = open_imagenet(tmp_path / "src"), Recipe(height=130, width=70)
    store = open_store(build_in_process(source, tmp_path / "store", recipe))
    lines = [image[int(c) % 4 :: 4][:32] for image, c in zip(store.images[...], store.checksums, strict=True)]
    values = np.concatenate(lines).reshape(-1, 3).astype(np.float64)
    np.testing.assert_allclose(store.manifest.pixel_mean, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(store.manifest.pixel_std, values.std(0), rtol=1e-12)
