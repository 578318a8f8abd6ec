"""Stores to report on: one has everything that a page can show, the other has an attack in every name."""

from dataclasses import astuple
from pathlib import Path

import numpy as np

from decodeonce.cli.report.page import PageContent, gather
from decodeonce.store import open_store
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, Reject, Sample, line, reject_line, sample_lines
from tests.command import printed
from tests.images import encoded, jpeg, make_image, replaced
from tests.store.signing import Facts, replace_file, resign
from tests.stores import make_store, random_images

ATTACKS = (
    "<script>window.attacked=1<",  # the path of its file, "script>.jpg", contains a whole script element
    '"onload="window.attacked=2',
    "'><img src=x onerror=window.attacked=3>",
    "<!-- ",
    "</style ><svg onload=window.attacked=4>".replace("/", "\u2215"),
    "&lt;b&gt;",
    "\u202eabc\x1b[31m",
)


def gather_facts(store: Path) -> PageContent:
    return gather(open_store(store), lambda rows: None)


def make_hostile_tree(root: Path) -> Path:
    """Write folders and files with hostile names. One file is truncated, some are gray, and one begins like HTML."""
    for number, name in enumerate(ATTACKS):
        (root / name).mkdir(parents=True)
        (root / name / "script>.jpg").write_bytes(jpeg(60 + 40 * number, 300, seed=number))
        (root / name / f"{name[:20]}.png").write_bytes(encoded(make_image(40, 50, mode="L"), "PNG"))
    (root / ATTACKS[0] / "script><b>.jpg").write_bytes(jpeg(300, 200)[:-4000])
    (root / ATTACKS[1] / "<i>.jpg").write_bytes(b"<script>window.attacked=5</script>")
    return root


def make_hostile_store(source: Path, root: Path) -> Path:
    """Build a store from a hostile tree, put markup into its descriptions, recipe and source, and sign it again."""
    printed("build", "folder", source, root, "--size", "64x48", "--max-bad", "3")

    def change(facts: Facts) -> None:
        facts["classes"][0]["description"] = "<h1>one</h1>"
        facts["recipe"].update({"<b>": {"</style><script>window.attacked=6</script>": "</table>"}})
        facts["source"].update({"kind": "<plaintext>", "</section>": ["--><script>window.attacked=7</script>"]})

    resign(root, change)
    return root


def make_store_of_many_classes(root: Path) -> Path:
    """Make a store with 300 rows, 60 classes of unequal size, 10 rejects, 30 unusual images and a damaged row, row 7.

    The sizes of its source images are from 1 to 4000 pixels.
    """
    rng = np.random.default_rng(0)
    labels = np.minimum(rng.geometric(0.1, 300) - 1, 58).astype(np.int64)
    columns = {"extra": np.zeros(300)}
    make_store(root, random_images(300, shape=(24, 32, 3)), labels, classes=60, shard_rows=250, columns=columns)
    sides = np.exp(rng.uniform(0, 8.3, (300, 2))).astype(int).tolist()
    samples = [
        Sample(row, int(labels[row]), f"class{labels[row]}", f"a/{row}.jpg", width, height, "", "0" * 16)
        for row, (width, height) in enumerate(sides)
    ]
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + sample_lines(map(astuple, samples)))
    rejects = [Reject(f"a/{row}.jpg", ("gray", "garbled: x", "CMYK")[row % 3], "kept") for row in range(30)]
    rejects += [Reject(f"b/{number}.jpg", "truncated: y", "rejected") for number in range(10)]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, rejects)))
    resign(root, lambda facts: facts["columns"][0].update(name="<script>window.attacked=8</script>"))
    resign(root, lambda facts: facts["recipe"].update(fit="crop", exif="ignore", height=24, width=32, shuffle_seed=0))
    shard = root / "images-00000.npy"
    shard.write_bytes(replaced(shard.read_bytes(), 4096 + 7 * 24 * 32 * 3, b"\0" * 50))
    return root
