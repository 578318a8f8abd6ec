"""A build: make the plan, decode, finish."""

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
    """Make the store `out` of a source's images: plan, decode and finish in one call.

    The same call resumes an earlier one that was stopped, at any moment. If `out` is this very store, finished, there
    is nothing to do but to complete a finish that was killed. Several builds of one `out` at once
    end in the same bytes.

    Args:
        source: The images, and their labels.
        out: The folder of the store.
        recipe: What decides the store's bytes.
        how: Worker processes, and what to do with rejects.
        progress: Called about once a second.
        expect: Raise BuildError unless the source lists so many images, rejects included.

    Returns:
        The manifest of the finished store.

    Raises:
        BuildError: Something must change first; the text says what.
        Stopped: Run the same call again; what is done is kept.
    """
    how = how or Work()
    if plan_unless_built(source, out, recipe, expect) is not None:
        work(out, how, progress)
    return finish(out, how.allowance)
