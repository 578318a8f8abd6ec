"""The facts of a report are right, compared with NumPy, Pillow and the geometry of the build."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from decodeonce.cli.report import facts as facts_module
from decodeonce.cli.report import rejected_images
from decodeonce.cli.report.histogram import Histogram
from decodeonce.cli.report.rejected_images import decode_rejected_images
from decodeonce.cli.report.sizes import Sizes, enlarged, read_sizes
from decodeonce.cli.rows import evenly_spaced
from decodeonce.prep.pixels.geometry import fit_to
from decodeonce.store import Reject, open_store, stage_store
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, Sample, line, reject_line, sample_line
from tests.forms.webdataset import write_tar
from tests.images import encoded, jpeg, make_image
from tests.report import crashing_decoder
from tests.report.stores import gather_facts, make_store_of_many_classes
from tests.store.signing import replace_file, resign
from tests.stores import make_store, random_images


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_histogram_equals_numpy_bincount(channels: int, tmp_path: Path) -> None:
    images = random_images(20, shape=(9, 7, channels)) // 3
    container = "hdf5" if channels == 3 else "npy"
    rows = gather_facts(make_store(tmp_path / "a", images, shard_rows=8, container=container)).rows
    assert (rows.histogram.rows, rows.checked, rows.damaged, rows.trouble) == (20, 20, [], "")
    for channel in range(channels):
        levels = images[..., channel]
        assert rows.histogram.counts[channel].tolist() == np.bincount(levels.ravel(), minlength=256).tolist()
        for share in (0.05, 0.5, 0.95):
            expected = np.quantile(levels, share, method="inverted_cdf")
            assert rows.histogram.quantile(channel, share) == expected
    assert np.allclose(rows.histogram.shares.sum(axis=1), 1)
    assert Histogram(channels).shares.sum() == 0


def test_damaged_row_is_named_and_not_in_the_histogram(tmp_path: Path) -> None:
    facts = gather_facts(make_store_of_many_classes(tmp_path / "a"))
    assert facts.rows.damaged == [7]
    assert facts.rows.shown[7].damaged
    assert not facts.rows.shown[6].damaged
    intact = np.delete(open_store(tmp_path / "a").images[:], 7, axis=0)
    assert facts.rows.histogram.counts[2].tolist() == np.bincount(intact[..., 2].ravel(), minlength=256).tolist()


def test_boxes_are_drawn_unless_their_columns_are_damaged(tmp_path: Path) -> None:
    columns = {"boxes": np.full((3, 1, 4), [[2, 3, 9, 11]], "<f4"), "box_count": np.array([1, 0, 1], "<i4")}
    root = make_store(tmp_path / "a", np.zeros((3, 16, 16, 3), np.uint8), columns=columns)
    shown = gather_facts(root).rows.shown
    drawn = [np.argwhere(np.asarray(shown[row].image).any(axis=2)) for row in range(3)]
    assert [(corners.min(0).tolist(), corners.max(0).tolist()) for corners in drawn[::2]] == [([24, 16], [87, 71])] * 2
    assert len(drawn[1]) == 0
    (root / "boxes.npy").write_bytes((root / "boxes.npy").read_bytes()[:-1] + b"\1")
    facts = gather_facts(root)
    assert list(facts.problems) == ["boxes.npy"]
    assert not any(np.asarray(shown.image).any() for shown in facts.rows.shown.values())


def test_large_store_is_sampled_at_evenly_spaced_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(1000, shape=(4, 4, 3))
    root = make_store(tmp_path / "a", images)
    monkeypatch.setattr(facts_module, "ALL_BYTES", 48 * 999)
    monkeypatch.setattr(facts_module, "SAMPLE_BYTES", 48 * 100)
    rows = gather_facts(root).rows
    assert (rows.sample, rows.histogram.rows, rows.checked) == (100, 100, 64 + 100 - 7)
    assert rows.histogram.counts.tolist() == [
        np.bincount(c, minlength=256).tolist() for c in images[::10].reshape(-1, 3).T
    ]
    monkeypatch.setattr(facts_module, "ALL_BYTES", 48 * 1000)
    assert gather_facts(root).rows.checked == 1000


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(1, 300))
def test_sampled_rows_are_evenly_spaced(first: int, count: int, wanted: int) -> None:
    rows = evenly_spaced(range(first, first + count), wanted)
    assert len(rows) == len(set(rows)) == min(count, wanted)
    assert rows[0] == first
    gaps = np.diff([*rows, first + count])
    assert gaps.max() - gaps.min() <= 1


def test_class_counts_equal_label_counts(tmp_path: Path) -> None:
    root = make_store_of_many_classes(tmp_path / "a")
    counts = gather_facts(root).counts
    assert counts is not None
    assert {label: n for label, n in enumerate(counts.tolist()) if n} == Counter(open_store(root).labels.tolist())
    assert len(counts) == 60


def test_staged_part_shows_and_checks_its_own_rows(tmp_path: Path) -> None:
    images = random_images(30, shape=(4, 4, 3))
    root = make_store(tmp_path / "a", images)
    unusual = [Reject("class0/3.jpg", "grey", "kept"), Reject("class2/11.jpg", "grey", "kept")]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, unusual)))
    stage_store(open_store(root), tmp_path / "part", rows=range(10, 25))
    facts = gather_facts(tmp_path / "part")
    assert facts.rows.damaged == []
    assert [facts.unusual_row(reject.source) is None for reject in unusual] == [True, False]
    assert (facts.first_rows, facts.rows.checked, facts.rows.histogram.rows) == (list(range(10, 25)), 15, 15)
    assert facts.rows.histogram.counts[0].tolist() == np.bincount(images[10:25, ..., 0].ravel(), minlength=256).tolist()
    assert facts.counts is not None
    assert facts.counts.sum() == 30


@given(
    st.sampled_from(["crop", "pad", "stretch"]),
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
)
def test_enlarged_agrees_with_build(fit: str, size: tuple[int, int], out: tuple[int, int]) -> None:
    sizes = Sizes(np.array([size[0]]), np.array([size[1]]), 0, 0, {})
    is_enlarged = enlarged(sizes, {"fit": fit, "exif": "ignore"}, (out[1], out[0], 3))
    assert is_enlarged is not None
    resized = fit_to(fit, size, out)
    assert bool(is_enlarged[0]) == (resized.width > size[0] or resized.height > size[1])


def test_enlarged_is_unknown_if_the_recipe_does_not_determine_it() -> None:
    sizes, square, wide = Sizes(np.array([9]), np.array([9]), 0, 0, {}), (99, 99, 3), (99, 98, 3)
    plain = {"fit": "crop", "exif": "ignore"}
    assert enlarged(sizes, plain, wide) is not None
    assert enlarged(sizes, {**plain, "exif": "apply"}, square) is not None
    for recipe in ({}, {"exif": "ignore"}, {**plain, "resized_from": [9, 9]}, {**plain, "exif": "apply"}):
        assert enlarged(sizes, recipe, wide) is None


def test_quantiles_of_large_sizes_are_whole_numbers() -> None:
    texts = Sizes(np.array([1234567, 30]), np.array([3000, 7]), 0, 0, {}).quantiles()
    assert (texts["width"][-1], texts["width"][3], texts["width / height"][-1]) == ("1234567", "30", "411.5")


@pytest.mark.parametrize("chunk", [2, 100])
def test_sizes_come_from_samples_and_boxes(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decodeonce.cli.report.sizes.CHUNK", chunk)
    root = make_store(tmp_path / "a", random_images(5))
    boxes = ["", "", "10,20,40,90", "", ""]
    names = ["a\tb", "a\\", "\udcff", "plain", "plain"]
    sides = [(5, 6), (0, 0), (100, 100), (7, 1), (8, 2)]
    samples = [
        Sample(row, 0, "class0", names[row], *sides[row], boxes[row], "0" * 16)
        for row in range(5)
    ]  # fmt: skip
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + b"".join(map(sample_line, samples)))
    sizes = read_sizes(open_store(root), {b"a\\tb", b"\\xff", b"plain", b"nowhere"})
    assert (sizes.widths.tolist(), sizes.heights.tolist()) == ([5, 30, 7, 8], [6, 70, 1, 2])
    assert (sizes.unknown, sizes.boxes, sizes.shorter.tolist()) == (1, 1, [5, 30, 1, 2])
    assert sizes.rows == {b"a\\tb": 0, b"\\xff": 2, b"plain": 3}


@pytest.mark.parametrize(
    "damaged", ["no tabs", "4\t1\tc\ts\tx\t9\t\t0", f"4\t1\tc\ts\t{2**64}\t9\t\t0", "4\t1\tc\ts\t9\t9\t1,2\t0", ""]
)
def test_malformed_samples_file_is_reported(damaged: str, tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5))
    lines = (root / "samples.tsv").read_bytes().splitlines(keepends=True)
    replace_file(root, "samples.tsv", b"".join([*lines[:5], f"{damaged}\n".encode() if damaged else b""]))
    facts = gather_facts(root)
    assert facts.sizes is None
    assert list(facts.problems) == ["samples.tsv"]


def test_rejects_are_counted_listed_and_shown_by_kind(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5))
    kinds = [("grey", "kept"), ("truncated: a", "rejected"), ("truncated: b", "rejected"), ("alpha", "left out")]
    rejects = [Reject(f"{number}.jpg", *kinds[number % 4]) for number in range(2000)]
    rejects += [Reject(f"x{number}", f"kind {number}", "kept") for number in range(50)]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, rejects)))
    gathered = gather_facts(root).rejects
    assert gathered is not None
    assert gathered.counts["rejected", "truncated"] == 1000
    assert (gathered.unusual, gathered.rejected, len(gathered.listed)) == (550, 1500, 500)
    assert gathered.listed == rejects[:500]
    shown = Counter(
        (reject.action, reject.reason.partition(":")[0]) for reject in gathered.shown_unusual + gathered.shown_rejects
    )
    assert shown["kept", "grey"] == shown["rejected", "truncated"] == shown["left out", "alpha"] == 4
    assert sum(number for (action, _), number in shown.items() if action == "kept") == 24


def test_unusual_images_are_shown_by_their_rows(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(90))
    unusual = [
        Reject("class0/81.jpg", "grey", "kept"),
        Reject("class1/4.jpg", "grey", "kept"),
        Reject("gone", "x", "kept"),
    ]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, unusual)))
    facts = gather_facts(root)
    rows = [facts.unusual_row(reject.source) for reject in unusual]
    assert [row.row if row else None for row in rows] == [81, 4, None]


def decode_files(tmp_path: Path, files: dict[str, bytes], kind: str = "folder") -> dict[str, Image.Image]:
    """Write these files to a source, and decode them as if they had been rejected."""
    for name, data in files.items():
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(data)
    root = make_store(tmp_path / "a.store", random_images(2))
    resign(root, lambda facts: facts["source"].update(kind=kind))
    rejects = [Reject(name, "x", "rejected") for name in files]
    return decode_rejected_images(open_store(root).manifest, str(tmp_path / "src"), rejects)


def test_decodable_part_of_a_reject_is_shown(tmp_path: Path) -> None:
    whole = jpeg(128, 128, seed=3)
    files = {
        "a/cut.jpg": whole[: len(whole) * 3 // 4],
        "a/b.jpg": b"<html>",
        "c.png": encoded(make_image(60, 30), "PNG")[:-300],
    }
    decoded = decode_files(tmp_path, files)
    assert sorted(decoded) == ["a/cut.jpg", "c.png"]
    with Image.open(io.BytesIO(whole)) as full:
        difference = np.abs(np.asarray(decoded["a/cut.jpg"], int) - np.asarray(full, int)).mean(axis=(1, 2))
    assert difference[:60].max() < 6
    assert difference[-8:].min() > 10


def test_reject_in_an_archive_is_found(tmp_path: Path) -> None:
    write_tar(tmp_path / "src/shard-0.tar", [("a.jpg", jpeg()), ("b.jpg", jpeg(300, 200)[:-3000])])
    root = make_store(tmp_path / "a.store", random_images(2))
    resign(root, lambda facts: facts["source"].update(kind="webdataset"))
    reject = Reject("shard-0.tar/b.jpg", "truncated", "rejected")
    for source in ("src", "src/shard-{0..0}.tar"):
        decoded = decode_rejected_images(open_store(root).manifest, str(tmp_path / source), [reject])
        assert list(decoded) == [reject.source]


def test_image_that_crashes_its_decoder_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = bytearray(encoded(make_image(9, 9), "PNG"))
    bomb[16:24] = b"\0\0\x9c\x40\0\0\x9c\x40"  # 40,000 x 40,000 pixels
    files = {"bomb.png": bytes(bomb), "empty": b""}
    assert decode_files(tmp_path / "a", files) == {}
    monkeypatch.setattr(rejected_images, "lenient_decoder", crashing_decoder)
    assert decode_files(tmp_path / "b", {"a.jpg": jpeg()}) == {}


def test_lenient_decoder_limits_time_and_memory() -> None:
    script = (
        "import resource\nfrom decodeonce.cli.report import lenient_decoder\n"
        "try:\n    lenient_decoder.answer('none', 9)\nexcept OSError:\n    names = ('DATA', 'CPU')\n"
        "    print([resource.getrlimit(getattr(resource, f'RLIMIT_{name}'))[0] for name in names])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == f"{[2 << 30, 10]}\n"


def test_large_file_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_images, "MAX_FILE_BYTES", len(jpeg(99, 99)) - 1)
    assert list(decode_files(tmp_path, {"a.jpg": jpeg(9, 9), "b.jpg": jpeg(99, 99)})) == ["a.jpg"]


def test_image_that_takes_too_long_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_images, "SECONDS", 1e-3)
    assert decode_files(tmp_path, {"a.jpg": jpeg()}) == {}


def test_manifest_names_no_folder_outside_the_source(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.jpg").write_bytes(jpeg())
    (tmp_path / "list.txt").write_text("secret.jpg 0\n")
    root = make_store(tmp_path / "a.store", random_images(2))
    options = {"root": str(tmp_path / "outside"), "follow_links": True}
    resign(root, lambda facts: facts["source"].update(kind="list", options=options))
    manifest, rejects = open_store(root).manifest, [Reject("secret.jpg", "x", "rejected")]
    assert decode_rejected_images(manifest, str(tmp_path / "list.txt"), rejects) == {}


def test_links_out_of_the_source_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.jpg").write_bytes(jpeg())
    (tmp_path / "src").mkdir()
    (tmp_path / "src/link").symlink_to(tmp_path / "outside")
    (tmp_path / "src/inner").symlink_to(tmp_path / "src/real")
    assert list(decode_files(tmp_path, {"real/a.jpg": jpeg()})) == ["real/a.jpg"]
    manifest = open_store(tmp_path / "a.store").manifest
    names = ["link/secret.jpg", "../outside/secret.jpg", str(tmp_path / "outside/secret.jpg"), "inner/a.jpg", "a\0b"]
    rejects = [Reject(name, "x", "rejected") for name in names]
    assert list(decode_rejected_images(manifest, str(tmp_path / "src"), rejects)) == ["inner/a.jpg"]
