"""`prep sample`: generate a small tree like ImageNet to try the commands on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli.options import Workers, option
from decodeonce.cli.output import count_bar, say
from decodeonce.host import usable_cores


def sample(
    dest: Annotated[Path, typer.Argument(help="Folder to create.", metavar="DEST")],
    count: Annotated[int, option("Generate N images.", "N", min=50)] = 3000,
    classes: Annotated[int, option("Make N class folders.", "N", min=1, max=1000)] = 30,
    seed: Annotated[int, option("Generate the images with this seed.", "N", min=0)] = 0,
    workers: Workers = None,
) -> None:
    """Create a small tree like ImageNet's, of generated images.

    They cost as much to decode as photographs. A few are unusual and, from 1,000 images on, one is damaged.
    """
    from decodeonce.prep.sample import write_sample_tree

    if classes > count:
        raise typer.BadParameter(f"--classes is {classes}, expected at most {count}, the value of --count")
    with count_bar("images", total=count) as update:
        nbytes, pixels = write_sample_tree(
            dest, count=count, classes=classes, seed=seed, workers=workers or usable_cores(), progress=update
        )
    say(
        f"{dest}: {count:,} images in {classes:,} classes, {nbytes / count / 1e3:.0f} KB and "
        f"{pixels / count:,.0f} pixels each on average"
    )
