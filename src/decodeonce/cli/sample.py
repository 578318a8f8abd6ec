"""`prep sample`: a small realistic ImageNet tree to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from decodeonce.cli.options import Workers, option
from decodeonce.cli.output import say


def sample(
    dest: Annotated[Path, typer.Argument(help="The folder to make.", metavar="DEST")],
    count: Annotated[int, option("Pictures.", "N", min=50)] = 3000,
    classes: Annotated[int, option("Class folders.", "N", min=1, max=1000)] = 30,
    seed: Annotated[int, option("Another seed, other pictures.", "N", min=0)] = 0,
    workers: Workers = None,
) -> None:
    """Make a small tree like ImageNet's, of drawn pictures that decode at a photograph's cost, some odd or broken."""
    from decodeonce.cli.progress import count_bar
    from decodeonce.host import usable_cores
    from decodeonce.prep.sample import write_sample_tree

    if classes > count:
        raise typer.BadParameter(f"--classes is {classes}, expected at most --count {count}")
    with count_bar("pictures", total=count) as bar:
        tree = write_sample_tree(
            dest, count=count, classes=classes, seed=seed, workers=workers or usable_cores(), progress=bar.update
        )
    say(
        f"{dest}: {tree.pictures} pictures in {tree.classes} classes, {tree.bytes / tree.pictures / 1e3:.0f} KB and "
        f"{tree.pixels / tree.pictures:.0f} pixels each on average"
    )
