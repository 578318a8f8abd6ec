"""Stores whose reports are looked at: one with all that a page can show, one whose every name is an attack."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decodeonce.cli.report import facts as gathering
from decodeonce.store import open_store
from decodeonce.store.table import REJECT_COLUMNS, SAMPLE_COLUMNS, Reject, Sample, line, reject_line, sample_line
from tests.command import prep
from tests.images import encoded, jpeg, picture, replaced
from tests.store.signing import Facts, replace_file, resign
from tests.stores import make_store, random_images

ATTACKS = (
    "<script>window.hurt=1<",  # a file in it is named "script>"
    '"onload="window.hurt=2',
    "'><img src=x onerror=window.hurt=3>",
    "<!-- ",
    "</style ><svg onload=window.hurt=4>".replace("/", "\u2215"),
    "&lt;b&gt;",
    "\u202eabc\x1b[31m",
)


def gathered(store: Path, source: Path | None = None) -> gathering.Facts:
    """What a report of the store tells."""
    return gathering.gather(open_store(store), None if source is None else str(source), lambda rows: None)


def hostile_tree(root: Path) -> Path:
    """Folders and files of such names, among them one that is cut, one grey and one that begins as a page does."""
    for number, name in enumerate(ATTACKS):
        (root / name).mkdir(parents=True)
        (root / name / "script>.jpg").write_bytes(jpeg(60 + 40 * number, 300, seed=number))
        (root / name / f"{name[:20]}.png").write_bytes(encoded(picture(40, 50, mode="L"), "PNG"))
    (root / ATTACKS[0] / "script><b>.jpg").write_bytes(jpeg(300, 200)[:-4000])
    (root / ATTACKS[1] / "<i>.jpg").write_bytes(b"<script>window.hurt=5</script>")
    return root


def hostile_store(source: Path, root: Path) -> Path:
    """The store that `prep build` makes of these, with such descriptions, recipe, source and column signed into it."""
    built = prep("build", "folder", source, root, "--size", "64x48", "--max-bad", "3")
    assert built.returncode == 0, built.stderr

    def change(facts: Facts) -> None:
        facts["classes"][0]["description"] = "<h1>one</h1>"
        facts["recipe"].update({"<b>": {"</style><script>window.hurt=6</script>": "</table>"}})
        facts["source"].update({"kind": "<plaintext>", "</section>": ["--><script>window.hurt=7</script>"]})

    resign(root, change)
    return root


def many_classes(root: Path) -> Path:
    """300 rows in 60 classes of unequal size, sizes from 1 to 4000 pixels, 40 rejects and oddities; one row damaged."""
    rng = np.random.default_rng(0)
    labels = np.minimum(rng.geometric(0.1, 300) - 1, 58).astype(np.int64)
    columns = {"extra": np.zeros(300)}
    make_store(root, random_images(300, shape=(24, 32, 3)), labels, classes=60, shard_rows=250, columns=columns)
    sides = np.exp(rng.uniform(0, 8.3, (300, 2))).astype(int).tolist()
    samples = [
        Sample(row, int(labels[row]), f"class{labels[row]}", f"a/{row}.jpg", width, height, "", "0" * 16)
        for row, (width, height) in enumerate(sides)
    ]
    replace_file(root, "samples.tsv", line(SAMPLE_COLUMNS) + b"".join(map(sample_line, samples)))
    found = [Reject(f"a/{row}.jpg", ("grey", "garbled: x", "CMYK")[row % 3], "kept") for row in range(30)]
    found += [Reject(f"b/{number}.jpg", "truncated: y", "rejected") for number in range(10)]
    replace_file(root, "rejects.tsv", line(REJECT_COLUMNS) + b"".join(map(reject_line, found)))
    resign(root, lambda facts: facts["columns"][0].update(name="<script>window.hurt=8</script>"))
    resign(root, lambda facts: facts["recipe"].update(fit="crop", exif="ignore", height=24, width=32, shuffle_seed=0))
    shard = root / "images-00000.npy"
    shard.write_bytes(replaced(shard.read_bytes(), 4096 + 7 * 24 * 32 * 3, b"\0" * 50))
    return root
