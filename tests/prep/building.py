"""Build stores in this process, which avoids the half second that a worker process takes to start."""

from collections.abc import Sequence
from pathlib import Path

from decodeonce.build import Recipe, finish, make_plan
from decodeonce.prep.building.journal import BlockRecord, Journal
from decodeonce.prep.building.plan import Block, Plan
from decodeonce.prep.building.worker import BlockDecoder, write_block
from decodeonce.prep.convert.convert import Conversion, open_conversion
from decodeonce.prep.processes.child import Heartbeat
from decodeonce.prep.sources.base import Source
from decodeonce.store.files import page_aligned_buffer


def build_in_process(source: Source, out: Path, recipe: Recipe) -> Path:
    """Build the store `out` and return its path; up to 99 % of the images may be rejects."""
    plan = make_plan(source, out, recipe)
    decoder = BlockDecoder(plan, Heartbeat(), fail_on_bad=False)
    journal = Journal(plan.paths.journals, 0, 1)
    for block in map(plan.blocks.__getitem__, range(len(plan.blocks))):
        report = write_block(plan, journal.path, block, *decoded(plan, decoder, block))
        journal.append(report["line"].encode())
    finish(out, "99%")
    return out


def convert_in_process(stores: Sequence[Path], out: Path, conversion: Conversion) -> Path:
    """Convert stores to the store `out` and return its path."""
    source, recipe = open_conversion(stores, out, conversion)
    return build_in_process(source, out, recipe)


def decoded(plan: Plan, decoder: BlockDecoder, block: Block) -> tuple[BlockRecord, memoryview]:
    """Return the record and the rows of a block."""
    buffer = page_aligned_buffer(block.rows * plan.recipe.row_bytes)
    reads = decoder.reads(plan.samples.entries(block.first, block.last))
    return decoder.decode(block, {}, buffer, reads), buffer
