"""Stores built in this process: what workers do, without their half second of starting."""

from __future__ import annotations

from pathlib import Path

from decodeonce.prep.build import finish, make_plan
from decodeonce.prep.build.journal import Journal
from decodeonce.prep.build.max_bad import Allowance
from decodeonce.prep.build.worker import BlockDecoder, BlockWriter
from decodeonce.prep.processes.heartbeat import Heartbeat
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources import Source
from decodeonce.store.shard_file import page_aligned_buffer


def built(source: Source, out: Path, recipe: Recipe) -> Path:
    """The store `out` of this source, whose pictures may all be rejects but one; returns it."""
    plan = make_plan(source, out, recipe)
    decoder = BlockDecoder(plan, Heartbeat(Heartbeat.new_fd()), fail_on_bad=False)
    writer = BlockWriter(plan, Journal(plan.paths.journals, 0, 1))
    for block in map(plan.blocks.__getitem__, range(len(plan.blocks))):
        buffer = page_aligned_buffer(block.rows * recipe.row_bytes)
        writer.write(block, 0, decoder.decode(block, {}, buffer), buffer)
    finish(out, Allowance.parse("99%"))
    return out
