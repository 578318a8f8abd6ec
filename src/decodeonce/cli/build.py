"""`prep build KIND`, `prep plan KIND`, `prep work`, `prep finish`.

`build` and `plan` have a command for each kind of source. The flags of one kind are the keyword-only parameters of its
opener (decodeonce/prep/sources/__init__.py). The flags of all kinds are the fields of `BuildOptions`.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin

import typer

import decodeonce
from decodeonce import cli
from decodeonce.cli.command import (
    Click,
    Command,
    DryRun,
    Group,
    Out,
    ResultCommand,
    Workers,
    make_command,
    new_app,
    option,
    parameters,
    parse_bytes,
    parse_paired,
    parse_seed,
    parse_size,
    usage_errors,
    with_options,
)
from decodeonce.cli.output import advice_on, build_progress, built_facts, print_result, rejects_text, say
from decodeonce.formatting import counted, duration_text, quoted, size_text
from decodeonce.launch import Task, find_idle_hosts, find_rank, find_task
from decodeonce.prep.paths import BuildPaths
from decodeonce.prep.recipe import BoxOrigin, BoxRules, Exif, Filter, Fit, OnBad, OnDamaged, Recipe, WithoutBox
from decodeonce.prep.sources import KINDS, SOURCES, find_opener
from decodeonce.store.layout import FORMS_TEXT, ContainerName, Json, PixelsName

if TYPE_CHECKING:
    from decodeonce.prep.building.pool import Progress, WorkSettings
    from decodeonce.prep.sources.base import Source
    from decodeonce.store import Manifest

Src = Annotated[
    str, typer.Argument(metavar="SRC", help="Source of the images: a folder, a file or a pattern, depending on KIND.")
]
Planned = Annotated[Path, typer.Argument(metavar="OUT", help="Planned store.")]
Size = Annotated[str, option("Set the height and width of a row in pixels: 256, or HxW such as 192x256.", "SIZE")]
DEFAULT_MAX_BAD = "auto"
ADVICE_FOR_RANKS = "; run prep plan once, then prep work in all ranks, then prep finish once"
MaxBad = Annotated[
    str,
    option(
        "Fail if more images than this are rejected: a number such as 25, a share such as 0.1%, or auto. auto allows "
        "0.1% of the images, or, with fewer than 10,000 images, a tenth of them, but at most ten.",
        "SHARE",
    ),
]
OnBadOption = Annotated[
    OnBad,
    option("An image that cannot be decoded: reject (skip it and list it in rejects.tsv) or fail (stop the build)."),
]

# The headings of --help, with the parameters below each. The flags of one kind of source are below "Source".
HEADINGS = {
    "Source": ("classes", "follow_links", "expect"),
    "Images": ("size", "fit", "filter", "exif", "levels", "on_damaged", "scaled_decode", "map", "paired", "pixels"),
    "Store": ("container", "shard_size", "shuffle_seed"),
    "Boxes": ("boxes", "box_margin", "min_box", "without_box", "box_origin", "keep_boxes"),
    "Run": ("workers", "on_bad", "max_bad", "dry_run"),
}


@dataclass(frozen=True)
class BuildRequest:
    """A build as the command line describes it."""

    source: Source
    out: Path
    recipe: Recipe
    how: WorkSettings
    expect: int | None


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The flags of a build that all kinds of source share."""

    size: Size = "256"
    fit: Annotated[
        Fit,
        option(
            "How images reach the size. crop: resize, then crop the center, like torchvision's Resize and "
            "CenterCrop; stretch: change the aspect ratio; pad: resize to fit and add black borders."
        ),
    ] = Recipe.fit
    filter: Annotated[Filter, option("Filter for resizing; bilinear is torchvision's default.")] = Recipe.filter
    pixels: Annotated[PixelsName, option(f"How pixels are stored: {FORMS_TEXT}.")] = Recipe.pixels
    container: Annotated[
        ContainerName, option("File format of the shards: npy (NumPy arrays) or hdf5 (HDF5 files).", flag="--format")
    ] = Recipe.container
    shard_size: Annotated[
        str,
        option("Limit each shard to this size, such as 10GB. A shard contains at least one block of rows.", "BYTES"),
    ] = "32GiB"
    shuffle_seed: Annotated[
        str | None,
        option(
            "Shuffle the rows with this seed; none keeps the source's order. "
            "(default: 0; none for ImageNet's val, Parquet and .tar.gz)",
            "N",
        ),
    ] = None
    workers: Workers = None
    on_bad: OnBadOption = "reject"
    max_bad: MaxBad = DEFAULT_MAX_BAD
    exif: Annotated[
        Exif, option("EXIF rotation: ignore it (keep pixels as stored) or apply it (rotate them upright).")
    ] = Recipe.exif
    levels: Annotated[
        str | None,
        option(
            "Scale 12- and 16-bit images, so that LOW becomes black and HIGH white, such as 0:4095 for "
            "X-rays; auto: the lowest and highest value of each image. (default: keep the upper 8 bits)",
            "LOW:HIGH",
        ),
    ] = Recipe.levels
    on_damaged: Annotated[
        OnDamaged,
        option(
            "A damaged image that can be decoded: keep (list it in rejects.tsv, but reject truncated images), reject "
            "(skip it and list it) or keep-truncated (also keep truncated images, whose missing part is one color)."
        ),
    ] = Recipe.on_damaged
    scaled_decode: Annotated[
        bool,
        option(
            "Decode large JPEGs at a smaller size, 1/2, 1/4 or 1/8. This is faster and gives other pixels.",
            flag="--scaled-decode",
        ),
    ] = Recipe.scaled_decode
    classes: Annotated[
        Path | None,
        option("Read the class names in label order from FILE, one per line. (default: those of SRC)", "FILE"),
    ] = None
    boxes: Annotated[
        Path | None,
        option(
            "Read boxes from COCO's JSON, or from a folder of ILSVRC's or VOC's XML, and make a row of every object. "
            "(default: whole images)",
            "PATH",
        ),
    ] = None
    box_margin: Annotated[
        float | None, option("Widen each box on every side by X times its width or height. (default: 0)", "X")
    ] = None
    min_box: Annotated[int | None, option("Skip objects with a side of less than N pixels. (default: 1)", "N")] = None
    without_box: Annotated[
        WithoutBox | None, option("An image without a box: keep it as a row, or skip it. (default: keep)")
    ] = None
    box_origin: Annotated[
        BoxOrigin | None,
        option(
            "Meaning of the XML's coordinates. 1: pixels numbered from 1, as in VOC; 0: from 0, as in ILSVRC; "
            "edge: distances from the image's edges. (default: by the XML's <database>, or edge)"
        ),
    ] = None
    keep_boxes: Annotated[
        int | None,
        option("Make a row of each image instead of each object, and store up to K of its boxes.", "K", min=1),
    ] = None
    map: Annotated[
        str | None, option("Call your function on each decoded image, before resizing.", "PACKAGE.MODULE:FUNCTION")
    ] = None
    paired: Annotated[
        list[str] | None,
        option(
            "Store a mask with each image. It is the file in DIR with the path of the image and any image suffix. With "
            "webdataset, pass the suffix of the masks in the tar as DIR. NAME:rgb=DIR keeps three channels. Repeat the "
            "flag for more masks.",
            "NAME=DIR",
        ),
    ] = None
    follow_links: Annotated[
        bool,
        option(
            "Follow links that lead outside SRC. Without this flag, images behind such links are rejected, and an "
            "archive or Parquet file behind one stops the build.",
            flag="--follow-links",
        ),
    ] = False
    dry_run: DryRun = False
    expect: Annotated[
        int | None,
        option("Fail unless SRC lists exactly N images, including rejected ones. (default: any number)", "N", min=1),
    ] = None

    def request(self, src: str, out: Path, opener: Callable[..., Source]) -> BuildRequest:
        """Check all flags, then open SRC."""
        from decodeonce.prep.building.pool import WorkSettings
        from decodeonce.prep.sources.classes import read_class_list

        if not src:
            raise typer.BadParameter("SRC is empty; expected a path or a pattern")
        with usage_errors():
            recipe = self._recipe()
            how = WorkSettings(workers=self.workers, max_bad=self.max_bad, on_bad=self.on_bad)
            names = read_class_list(self.classes) if self.classes else None
        if self.paired:
            from decodeonce.prep.sources.paired import open_with_paired

            opener = partial(open_with_paired, opener, paired=parse_paired(self.paired))
        source = opener(src, classes=names, follow_links=self.follow_links)
        if self.boxes is not None and recipe.boxes is not None:
            from decodeonce.prep.sources.boxed import BoxedSource

            source = BoxedSource(
                source, self.boxes, recipe.boxes, origin=self.box_origin, follow_links=self.follow_links
            )
        if self.shuffle_seed is None and source.keeps_order:
            recipe = replace(recipe, shuffle_seed=None)
        with usage_errors():  # also in `with_paired`, but a conflict of flags is a usage error
            recipe = replace(recipe, paired=source.paired)
        return BuildRequest(source, out, recipe, how, self.expect)

    def _recipe(self) -> Recipe:
        from decodeonce.prep.pixels.user_map import find_map

        height, width = parse_size(self.size)
        same = ("fit", "filter", "container", "exif", "levels", "on_damaged", "scaled_decode", "pixels")
        return Recipe(
            **{name: getattr(self, name) for name in same},
            height=height,
            width=width,
            shard_size=parse_bytes(self.shard_size),
            # Without the flag, it is 0. In a recipe, None means that rows are not shuffled.
            shuffle_seed=0 if self.shuffle_seed is None else parse_seed(self.shuffle_seed),
            boxes=self._box_rules(),
            map=find_map(self.map) if self.map else None,
        )

    def _box_rules(self) -> BoxRules | None:
        flags = {"margin": self.box_margin, "least": self.min_box, "without": self.without_box, "keep": self.keep_boxes}
        given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
        if self.boxes is not None:
            return BoxRules(**given)
        if given or self.box_origin:
            flags_of_boxes = "--box-margin, --min-box, --without-box, --box-origin and --keep-boxes"
            raise typer.BadParameter(f"{flags_of_boxes} require --boxes PATH")
        return None


def kinds_app(run: Callable[[BuildRequest], None], help_text: str, cls: type[Command] = ResultCommand) -> typer.Typer:
    """Return a group with a command for each kind of source, created on first use, that opens SRC and calls `run`."""

    class Kinds(Group):
        lazy: ClassVar = {kind: partial(_kind_command, kind, run, cls) for kind in KINDS}

        def list_commands(self, ctx: Any) -> list[str]:
            from decodeonce.prep.sources.plugins import plugins

            return [*self.lazy, *sorted(plugins())]

        def get_command(self, ctx: Any, name: str) -> Any:
            """Return the command; that of another package has only a summary, because its module is not imported."""
            from decodeonce.prep.sources.plugins import package_of, plugins

            if name not in {*self.lazy, *self.commands} and name in plugins():  # finding them takes time
                return make_command(lambda: None, cls, help=f"Added by the package {package_of(plugins()[name][0])}.")
            return super().get_command(ctx, name)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Return the command to run; import the package that adds it, unless the shell only completes a line."""
            found: Any = super().resolve_command(ctx, args)
            name, command, words = found
            if name in self.commands or command is None or ctx.resilient_parsing:
                return found
            from decodeonce.prep.sources.plugins import plugin_errors

            with plugin_errors(name):
                self.commands[name] = _kind_command(name, run, cls)
            return name, self.commands[name], words

        def unknown_text(self, ctx: Click, args: list[str]) -> str:
            if kind := likely_kind(Path(args[0])):
                return f"KIND is missing; for {args[0]}, it is probably {kind}; write {kind} before it"
            return super().unknown_text(ctx, args).replace("command", "KIND", 1)

    app = new_app(cls=Kinds, help=help_text, subcommand_metavar="KIND SRC OUT [FLAGS]")
    app.callback()(lambda: None)
    return app


def likely_kind(src: Path) -> str:
    """Return the kind that reads a path, by its suffix or, for a folder, by some names in it; "" if there is none."""
    kinds = {suffix: kind for kind in ("webdataset", "parquet") for suffix in SOURCES[kind].suffixes}
    try:
        entries = list(islice(os.scandir(src), 100))
    except NotADirectoryError:
        kinds |= {".csv": "list", ".tsv": "list", ".txt": "list"}
        found = next((kind for suffix, kind in kinds.items() if src.name.endswith(suffix)), "")
        return "imagenet" if found == "webdataset" and src.name.startswith("ILSVRC2012_") else found
    except OSError:
        return ""
    names = [entry.name for entry in entries]
    if any(name.startswith("ILSVRC2012_") for name in names):
        return "imagenet"
    if any(entry.is_dir() for entry in entries):  # an archive next to class folders was unpacked
        kinds = {".tar": "webdataset", ".parquet": "parquet"}
    return next((kind for suffix, kind in kinds.items() if any(name.endswith(suffix) for name in names)), "folder")


def _kind_command(kind: str, run: Callable[[BuildRequest], None], cls: type[Command]) -> Click:
    opener = find_opener(kind)

    def command(src: Src, out: Out, options: BuildOptions, **own: object) -> None:
        request = options.request(src, out, partial(opener, **own))
        if options.dry_run:
            say_found(request)
            return say_dry_run(request)
        run(request)

    annotated = [parameter for parameter in parameters(opener) if get_origin(parameter.annotation) is Annotated]
    help_text = (inspect.getdoc(opener) or "").partition("\n\n")[0]
    made = make_command(with_options(command, BuildOptions, map(_flag, annotated)), cls, help=help_text)
    headings = {name: heading for heading, names in HEADINGS.items() for name in names}
    headings |= {parameter.name: "Source" for parameter in annotated}
    for param in made.params:
        param.rich_help_panel = headings.get(param.name)
    return made


def _flag(parameter: Parameter) -> Parameter:
    """Return the flag of a parameter annotated as `Annotated[type, "help text"]` or with a "METAVAR" after the text."""
    kind, *texts = get_args(parameter.annotation)
    flag = f"--{parameter.name.replace('_', '-')}" if kind is bool else ""
    return parameter.replace(annotation=Annotated[kind, option(*texts, flag=flag)])


def run_build(request: BuildRequest) -> None:
    """Plan, decode and finish a build, and print a summary."""
    from decodeonce.prep.building.build import build

    check_alone(ADVICE_FOR_RANKS)
    say_found(request)
    was_finished = BuildPaths(request.out).manifest.exists()
    start, decoded = time.monotonic(), 0
    with build_progress() as show:

        def progress(now: Progress) -> None:
            nonlocal decoded
            decoded = now.new_rows
            show(now)

        manifest = build(request.source, request.out, request.recipe, request.how, progress, request.expect)
    seconds = time.monotonic() - start
    speed = f" in {duration_text(seconds)}, {decoded / seconds:,.0f} images/s"
    say_outcome(request.out, manifest, was_finished, speed, seconds=round(seconds, 3), decoded_images=decoded)


def run_plan(request: BuildRequest) -> None:
    """Write the plan, reserve the space and print the next command."""
    from decodeonce.prep.building.build import plan_unless_built
    from decodeonce.prep.building.plan import in_classes, max_bad_flag

    check_alone(ADVICE_FOR_RANKS)
    say_found(request)
    say_storage(request.out)
    plan = plan_unless_built(request.source, request.out, request.recipe, request.expect)
    if plan is None:
        return say_built(request.out)
    images, classes, rows, blocks = plan.candidates, len(plan.classes), plan.count, len(plan.blocks)
    found = f"{counted(images, 'image')} found{in_classes(classes)}"
    planned = f"{counted(rows, 'row')} in {counted(blocks, 'block')}"
    how = request.how
    flags = f"{f' --workers {how.workers}' if how.workers else ''}{' --on-bad fail' if how.on_bad == 'fail' else ''}"
    work = f"prep work {quoted(request.out)}{flags}{max_bad_flag(how.max_bad)}"
    say(f"{request.out}: {found}, {planned} planned; next: {work}")
    facts = {"images": images, "classes": classes, "rows": rows, "blocks": blocks}
    print_result({"out": str(request.out), "already_finished": False, **facts})


build = kinds_app(run_build, "Build a store from images: plan, decode and finish in one command.")
plan = kinds_app(run_plan, "Plan a build: list the images, assign rows and reserve space.")


def say_built(out: Path, **run: object) -> None:
    """Print that the build is finished, for example if a job was submitted twice. `run`: more facts for --json."""
    say(f"{out}: already finished, nothing to do")
    if cli.results:  # otherwise no file of the store is read
        print_result(built_facts(out, decodeonce.open_store(out).manifest, already_finished=True, **run))


def say_found(request: BuildRequest) -> None:
    """Print what kind of source was recognized, and a warning if the decoders are installed wrongly."""
    from decodeonce.prep.pixels.versions import two_pillows

    if warning := two_pillows():
        say(f"warning: {warning}", err=True)
    say(f"{request.source.root}: {request.source.found}")


def check_alone(advice: str = "") -> None:
    """Raise a usage error, which ends with `advice`, if a launcher started several ranks."""
    with usage_errors():
        rank = find_rank()
    if rank.world_size > 1:
        raise typer.BadParameter(f"this is {rank}, but this command must run in one process{advice}")


def say_storage(out: Path) -> None:
    """Print the free space of the storage, and advice for it."""
    from decodeonce.prep.building.free_space import describe_storage, find_storage, stripe_advice

    storage = find_storage(out)
    for sentence in [*describe_storage(storage), *stripe_advice(out, storage)]:
        say(sentence)


def say_dry_run(request: BuildRequest) -> None:
    """Print the bytes, files and space of a build, and what a look at a few images shows."""
    from decodeonce.cli.dryrun import dry_run
    from decodeonce.prep.building.output_dir import is_built

    if is_built(request.source, request.out, request.recipe, request.expect):
        return say_built(request.out)
    facts: Json = {"out": str(request.out), "already_finished": False}
    found = dry_run(request.source, request.out, request.recipe, request.how.max_bad, request.expect, facts)
    for line, is_warning in found:
        say(line, err=is_warning and cli.quiet)
    print_result(facts)


def say_outcome(
    out: Path, manifest: Manifest, was_finished: bool, speed: str = "", *, advise: bool = True, **run: object
) -> None:
    """Print what is in a store that the command has finished, unless it was finished before. `run`: as `say_built`.

    `advise`: whether to name flags of a build for its unusual images.
    """
    if was_finished:
        return say_built(out, **run)
    facts = built_facts(out, manifest, already_finished=False, **run)
    used, classes = facts["used_classes"], facts["classes"]
    some = f"{used} of " if used < classes else ""
    rows = f"{counted(facts['rows'], 'row')} in {some}{counted(classes, 'class', 'classes')}"
    if any(facts["rejects"].values()):
        counts = f"{rejects_text(facts)}; see rejects.tsv"
        say(f"{out}: {counts}", err=facts["rejects"]["rejected"] > 0 and cli.quiet)
    levels = facts["recipe"].get("levels")
    if advise and (facts["kept"] or levels is not None):
        for line in advice_on(facts["kept"], levels):
            say(f"{out}: {line}", err=cli.quiet)
    say(f"{out}: {rows}, {size_text(facts['bytes'])}, written{speed}; next: prep info {quoted(out)}")
    print_result(facts)


def work(
    out: Planned,
    task: Annotated[
        int | None, option("Decode the blocks of task I, counted from 0. (default: from the launcher)", "I", min=0)
    ] = None,
    tasks: Annotated[
        int | None, option("Divide the blocks among N tasks. (default: from the launcher)", "N", min=1)
    ] = None,
    workers: Workers = None,
    on_bad: OnBadOption = "reject",
    max_bad: MaxBad = DEFAULT_MAX_BAD,
) -> None:
    """Decode one task's blocks of a planned store.

    The task number comes from --task and --tasks, or from a job array or launcher. Without either, the command decodes
    all blocks that are not done, which also completes the work of lost tasks. On SIGUSR1, it finishes its current
    blocks and exits with code 75.
    """
    from decodeonce.prep.building import pool
    from decodeonce.prep.building.plan import max_bad_flag

    share = _share(task, tasks)
    with usage_errors():
        how = pool.WorkSettings(workers=workers, task=share.task, tasks=share.tasks, max_bad=max_bad, on_bad=on_bad)
    if BuildPaths(out).manifest.exists():
        return say_built(out)
    if BuildPaths(out).plan.exists():  # otherwise `pool.work` reports what is missing
        say(f"{out}: {share}")
    if task is None and (idle := find_idle_hosts()):
        say(f"warning: {idle}", err=True)
    with build_progress() as progress:
        pool.work(out, how, progress)
    if BuildPaths(out).manifest.exists():
        return say_built(out)
    finish = f"prep finish {quoted(out)}{max_bad_flag(max_bad)}"
    say(f"{out}: task {share.task} of {share.tasks} is done; after all tasks, run: {finish}")


def _share(task: int | None, tasks: int | None) -> Task:
    if task is None:
        try:
            return find_task(tasks) or Task(0, 1, "all remaining blocks")
        except ValueError as error:
            raise typer.BadParameter(f"{error} (--task I --tasks N)") from None
    if tasks is None:
        raise typer.BadParameter("--task requires --tasks N")
    return Task(task, tasks, "from --task")


def finish(out: Planned, max_bad: MaxBad = DEFAULT_MAX_BAD) -> None:
    """Finish a store whose blocks are all decoded: fill the rows of rejected images and write the manifest."""
    from decodeonce.prep.building.finish import finish as finish_build
    from decodeonce.prep.building.pool import WorkSettings

    with usage_errors():
        WorkSettings(max_bad=max_bad)
    was_finished = BuildPaths(out).manifest.exists()
    manifest = finish_build(out, max_bad)  # this also completes a finish that was killed
    say_outcome(out, manifest, was_finished)
