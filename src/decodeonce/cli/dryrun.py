"""`--dry-run`: print the bytes, files and space of a build, and what a look at a few of its images shows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from decodeonce.cli.output import advice_on, bytes_as, bytes_as_text
from decodeonce.errors import BuildError, Stopped
from decodeonce.formatting import counted, size_text
from decodeonce.host import limited_memory
from decodeonce.prep.building.free_space import (
    check_free_space,
    describe_storage,
    find_storage,
    space_needed,
    stripe_advice,
)
from decodeonce.prep.building.output_dir import check_output_dir
from decodeonce.prep.building.plan import (
    Block,
    Plan,
    allowed_rejects,
    check_matches_plan,
    checked_listing,
    enough_rejects,
    in_classes,
    plan_content,
    read_plan,
)
from decodeonce.prep.building.worker import BlockDecoder
from decodeonce.prep.listing import Entry, Listing, name_bytes
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.prep.processes.child import Child, Parent, death, wait_for
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import Source
from decodeonce.remote import QUERY, take_over
from decodeonce.store import Reject
from decodeonce.store.layout import Json

DryRunLine = tuple[str, bool]  # the text, and whether it is a warning
IMAGES = 32  # to look at
UNITS = 4  # to read some of the images from, because a read unit is read as a whole


def dry_run(
    source: Source, out: Path, recipe: Recipe, max_bad: str, expect: int | None, facts: Json
) -> Iterator[DryRunLine]:
    """Yield the lines to print, and add to the facts for --json. Raises the errors of a build, lack of space last."""
    paths = BuildPaths(out)
    check_output_dir(paths, source)
    listing = checked_listing(source, expect)
    plan = Plan(paths, plan_content(source, listing, recipe, decoder_versions(recipe.container)))
    if started := paths.plan.exists():
        check_matches_plan(read_plan(paths), listing, plan.content)
    blocks, rejected = plan.blocks, len(listing.rejects)
    sizes = bytes_as(blocks.shard_bytes, plan.count, recipe.pixels, recipe.shape)
    facts |= {"rows": plan.count, "shape": recipe.shape, "classes": len(listing.classes), "pixels": recipe.pixels}
    facts |= {"shards": blocks.shards, "container": recipe.container, "bytes": blocks.shard_bytes, "bytes_as": sizes}
    facts |= {"rejected_files": rejected, "unfinished_build": started}
    rows = f"{counted(plan.count, 'row')} of {recipe.height}x{recipe.width}x3{in_classes(len(listing.classes))}"
    shards = f"{bytes_as_text(sizes)} in {counted(blocks.shards, f'{recipe.container} shard')}"
    yield f"{rows}, {shards}; {counted(rejected, 'file')} rejected; nothing was written", rejected > 0
    needed = space_needed(plan)
    other = needed.bytes - facts["bytes"]
    facts |= {"other_bytes": other, "files": needed.files}
    space = f"space: {size_text(facts['bytes'])} for shards, up to {size_text(other)} for other data"
    yield f"{space}; up to {needed.files} files", False
    yield from _sample_lines(source, plan, listing, max_bad, facts)
    if started:  # its space is already reserved
        yield f"{out}: an unfinished build is here; the same command without --dry-run resumes it", False
        return
    storage = find_storage(out)
    facts["storage"] = {**asdict(storage), "place": str(storage.place)}
    yield from ((line, False) for line in [*describe_storage(storage), *stripe_advice(out, storage)])
    check_free_space(out, storage, needed)


def _sample_lines(source: Source, plan: Plan, listing: Listing, max_bad: str, facts: Json) -> Iterator[DryRunLine]:
    """Yield what a sample of the images shows, and a warning if the build would fail because of too many rejects.

    Raises:
        BuildError: If none of the images can be decoded.
    """
    sample = sample_of(listing, by_unit=bool(source.unit_name))
    found = look_at(plan, sample)
    rejects = [one for one in found if one.action == "rejected"]
    if len(rejects) == len(sample):
        tried = counted(len(sample), "image was", "images were")
        raise BuildError(f"{source.root}: {tried} tried and none can be decoded, for example {rejects[0]}")
    bad = f"{len(rejects)} of them cannot be decoded, first {rejects[0]}" if rejects else "all of them can be decoded"
    kept = Counter(one.reason for one in found if one.action == "kept")
    allowed = allowed_rejects(max_bad, listing.candidates)
    expected = len(listing.rejects) + round(len(rejects) / len(sample) * len(listing))
    facts["sample"] = {"images": len(sample), "rejected": len(rejects), "kept": kept}
    facts |= {"images": listing.candidates, "expected_rejects": expected, "allowed_rejects": allowed}
    yield f"sample: {len(sample)} of {counted(len(listing), 'image')} read; {bad}", bool(rejects)
    for line in advice_on(kept, plan.recipe.levels):
        yield f"in this sample, {line}", True
    if expected > allowed:
        yield (
            f"this build would probably fail: about {expected} of {listing.candidates} images would be rejected, but "
            f"--max-bad {max_bad} allows {allowed}; repair or remove them, or pass "
            f"--max-bad {enough_rejects(expected, listing.candidates)}",
            True,
        )


def sample_of(listing: Listing, *, by_unit: bool) -> list[Entry]:
    """Return up to IMAGES random samples; `by_unit`: the first ones of up to UNITS random read units."""
    random = np.random.default_rng(0)
    if by_unit:
        starts = np.flatnonzero(np.diff(listing.records["unit"], prepend=-1))
        starts = random.permutation(starts)[:UNITS]
        rows = np.unique(starts[:, None] + np.arange(IMAGES // len(starts)))
    else:
        rows = np.sort(random.permutation(len(listing))[:IMAGES])
    return [listing.entry(row) for row in rows[rows < len(listing)].tolist()]


def look_at(plan: Plan, sample: Sequence[Entry]) -> list[Reject]:
    """Decode a sample in a process of its own; return what a build would list in rejects.tsv.

    An image whose decoder ends the process is a reject, and a new process decodes those after it.
    """
    found, done = list[Reject](), 0
    while done < len(sample):
        child = Child(__name__)
        try:
            entries = [{**asdict(entry), "name": entry.text} for entry in sample[done:]]
            query = os.environ.get(QUERY, "")
            child.send({"out": str(plan.paths.root), "plan": plan.content, "entries": entries, "query": query})
            while wait_for([child]) and (messages := child.receive()) is not None:
                for message in messages:
                    found += [Reject(sample[done].text, reason, action) for _, reason, action in message["report"]]
                    done += 1
            if done < len(sample):
                status = child.exit_status()
                error = death("the process that decodes a sample", status, "see the messages above")
                if isinstance(error, Stopped) or child.heartbeat.decoding is child.heartbeat.reading is None:
                    raise error
                found.append(Reject(sample[done].text, f"the decoder died with exit status {status}", "rejected"))
                done += 1
        finally:
            child.end()
    return found


def main(arguments: list[str]) -> int:
    """Run the process: decode the samples that the parent sends, and report the lines of rejects.tsv of each."""
    with Parent(arguments) as parent, limited_memory():
        task = parent.receive()
        take_over(task["query"])
        plan = Plan(BuildPaths(task["out"]), task["plan"])
        decoder = BlockDecoder(plan, parent.heartbeat, fail_on_bad=False)
        buffer = memoryview(bytearray(plan.recipe.row_bytes))
        entries = [Entry(**{**entry, "name": name_bytes(entry["name"])}) for entry in task["entries"]]
        for number, read in enumerate(decoder.reads(entries)):
            block = Block(0, number, number + 1, 0, 0)
            parent.report(decoder.decode(block, {}, buffer, [read]).rejects)
    return 0
