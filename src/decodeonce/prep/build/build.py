"""Build a store in one call: plan, decode, finish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from decodeonce.prep.build.finish import finish
from decodeonce.prep.build.make_plan import plan_unless_built
from decodeonce.prep.build.task import Progress, Work, work
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source
from decodeonce.store import Manifest


def build(
    source: Source,
    out: Path,
    recipe: Recipe,
    how: Work | None = None,
    progress: Callable[[Progress], None] | None = None,
    expect: int | None = None,
) -> Manifest:
    """Build a store from a source's images: plan, decode and finish.

    If an earlier call was stopped at any moment, the same call resumes it. If `out` already is the finished store,
    nothing is decoded. Concurrent builds of the same `out` produce the same bytes.

    Args:
        source: The images and their labels.
        out: Folder of the store.
        recipe: The settings that decide the store's bytes.
        how: Number of worker processes, and what to do with rejects. Default: `Work()`.
        progress: Called about once per second.
        expect: Required number of images in the source, rejects included. None: any number.

    Returns:
        The manifest of the finished store.

    Raises:
        BuildError: The build cannot continue until something changes; the text says what.
        Stopped: The build stopped early. Completed blocks are kept: make the same call again.

    Example:
        >>> build(FolderSource(Path("imagenet/val")), Path("val.store"), Recipe(height=64, width=64), Work(workers=2))
    """
    how = how or Work()
    if plan_unless_built(source, out, recipe, expect) is not None:
        work(out, how, progress)
    return finish(out, how.allowance)
