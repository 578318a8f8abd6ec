"""`prep build`, `prep plan`, `prep work`, `prep finish`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decodeonce.cli import parse
from decodeonce.cli.output import say
from decodeonce.formatting import counted, quoted

if TYPE_CHECKING:
    from decodeonce.cli.dryrun import Workplace
    from decodeonce.launch import Task
    from decodeonce.prep.build import Work
    from decodeonce.prep.recipe import BoxRules, Recipe
    from decodeonce.prep.sources import Source
    from decodeonce.store import Manifest


class Kind(str, Enum):
    imagenet = "imagenet"
    folder = "folder"
    list = "list"
    webdataset = "webdataset"
    parquet = "parquet"


class Split(str, Enum):
    train = "train"
    val = "val"
    auto = "auto"


class Fit(str, Enum):
    crop = "crop"
    stretch = "stretch"
    pad = "pad"


class Filter(str, Enum):
    bilinear = "bilinear"
    bicubic = "bicubic"
    lanczos = "lanczos"
    box = "box"


class Format(str, Enum):
    npy = "npy"
    hdf5 = "hdf5"


class Exif(str, Enum):
    ignore = "ignore"
    apply = "apply"


class OnOdd(str, Enum):
    keep = "keep"
    reject = "reject"


class NoBox(str, Enum):
    whole = "whole"
    skip = "skip"


class OnBad(str, Enum):
    reject = "reject"
    fail = "fail"


KindArgument = Annotated[
    Kind,
    typer.Argument(
        metavar="KIND",
        help="imagenet: a tree, the tars as downloaded, Kaggle's layout or its zip; folder: SRC/<class>/…/<picture>; "
        "list: a file that names pictures; webdataset: 'shard-{0000..0147}.tar'; parquet: Hugging Face's tables.",
    ),
]
Src = Annotated[str, typer.Argument(help="Where the pictures are.", metavar="SRC")]
Out = Annotated[Path, typer.Argument(help="The store to make, or to go on with.", metavar="OUT")]
Begun = Annotated[Path, typer.Argument(help="A store that was planned.", metavar="OUT")]
Size = Annotated[str, typer.Option(metavar="SIZE", help="Pixels of a row: 256, or HxW.")]
FitOption = Annotated[Fit, typer.Option(help="crop: Resize and CenterCrop as in torchvision; or stretch, or pad.")]
FilterOption = Annotated[Filter, typer.Option("--filter", help="How to resize.")]
FormatOption = Annotated[Format, typer.Option("--format", help="What the shards are.")]
ShardSize = Annotated[str, typer.Option(metavar="BYTES", help="Bytes of a shard, at least one block.")]
Seed = Annotated[
    str | None, typer.Option(metavar="N", help="Permute the samples: a number, or none. (default: 0; none for val)")
]
Workers = Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes. (default: usable cores)")]
OnBadOption = Annotated[OnBad, typer.Option(help="List pictures that cannot be decoded, or fail at the first.")]
MaxBad = Annotated[
    str, typer.Option(metavar="SHARE", help="More rejects than this fail the build: a share, or a number.")
]
ExifOption = Annotated[Exif, typer.Option(help="EXIF rotation.")]
OnOddOption = Annotated[OnOdd, typer.Option(help="Pictures that decode although their data are damaged.")]
Scaled = Annotated[
    bool, typer.Option("--scaled-decode", help="Let libjpeg-turbo scale large pictures: faster, other bytes.")
]
Classes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file with a class name a line: the label order. (default: sorted names)"),
]
FollowLinks = Annotated[bool, typer.Option("--follow-links", help="Read what links below SRC lead to outside of it.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be built; write nothing.")]
Expect = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Stop unless SRC lists exactly N pictures, rejects included. (default: any)"),
]
SplitOption = Annotated[Split | None, typer.Option(help="Which part of ImageNet. (default: auto)")]
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="What a list's paths are relative to. (default: the list's folder)")
]
PictureColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="A table's column of pictures. (default: the only one)")
]
LabelColumn = Annotated[
    str | None, typer.Option(metavar="NAME", help="A table's column of labels. (default: the only one)")
]
BoxesOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A folder of ILSVRC's XML: every object becomes a row.")
]
BoxMargin = Annotated[
    float | None, typer.Option(metavar="X", help="Widen boxes by this share of a side, on each side. (default: 0)")
]
MinBox = Annotated[
    int | None, typer.Option(metavar="N", help="Leave out objects with a shorter side, in pixels. (default: 1)")
]
NoBoxOption = Annotated[NoBox | None, typer.Option(help="What a picture without a box becomes. (default: whole)")]
KeepBoxes = Annotated[
    int | None,
    typer.Option(min=1, help="Keep up to K boxes as a column beside the whole picture instead.", metavar="K"),
]
MapOption = Annotated[
    str | None,
    typer.Option("--map", help="Your function on each decoded picture.", metavar="PACKAGE.MODULE:FUNCTION"),
]


@dataclass(frozen=True)
class Job:
    """What a build's command line asked for."""

    source: Source
    out: Path
    recipe: Recipe
    work: Work
    dry_run: bool
    expect: int | None


def command(run: Callable[[Job], None], help_text: str = "") -> Callable[..., None]:
    """The command line of `prep build` and `prep plan`, the same for both; `run` does what each is for."""

    def parsed(
        kind: KindArgument,
        src: Src,
        out: Out,
        split: SplitOption = None,
        size: Size = "256",
        fit: FitOption = Fit.crop,
        resize_filter: FilterOption = Filter.bilinear,
        container: FormatOption = Format.npy,
        shard_size: ShardSize = "32GiB",
        shuffle_seed: Seed = None,
        workers: Workers = None,
        on_bad: OnBadOption = OnBad.reject,
        max_bad: MaxBad = "0.1%",
        exif: ExifOption = Exif.ignore,
        on_odd: OnOddOption = OnOdd.keep,
        scaled_decode: Scaled = False,
        classes: Classes = None,
        root: Root = None,
        picture_column: PictureColumn = None,
        label_column: LabelColumn = None,
        boxes: BoxesOption = None,
        box_margin: BoxMargin = None,
        min_box: MinBox = None,
        no_box: NoBoxOption = None,
        keep_boxes: KeepBoxes = None,
        user_map: MapOption = None,
        follow_links: FollowLinks = False,
        dry_run: DryRun = False,
        expect: Expect = None,
    ) -> None:
        height, width = parse.picture_size(size)
        shard_bytes, seed = parse.byte_size(shard_size), parse.shuffle_seed(shuffle_seed)
        how = _work(workers, max_bad, on_bad)
        rules = _box_rules(boxes, margin=box_margin, least=min_box, without=no_box, keep=keep_boxes)
        names = _class_list(classes)
        columns = {"picture": picture_column, "label": label_column}
        source = _source(kind, src, names, split=split, root=root, **columns, follow_links=follow_links)
        from decodeonce.prep.pixels.user_map import find_map
        from decodeonce.prep.recipe import Recipe
        from decodeonce.prep.sources import BoxedSource

        if boxes is not None and rules is not None:
            source = BoxedSource(source, boxes, rules, follow_links=follow_links)
        try:
            recipe = Recipe(
                height=height,
                width=width,
                fit=fit.value,
                filter=resize_filter.value,
                container=container.value,
                shard_size=shard_bytes,
                shuffle_seed=(None if source.keeps_order else 0) if seed == "default" else seed,
                exif=exif.value,
                on_odd=on_odd.value,
                scaled_decode=scaled_decode,
                boxes=rules,
                map=find_map(user_map) if user_map else None,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        run(Job(source, out, recipe, how, dry_run, expect))

    parsed.__doc__ = help_text
    return parsed


def _source(
    kind: Kind,
    src: str,
    classes: list[str] | None,
    *,
    split: Split | None,
    root: Path | None,
    picture: str | None,
    label: str | None,
    follow_links: bool,
) -> Source:
    from decodeonce.prep import sources

    if not src:
        raise typer.BadParameter("SRC is empty; expected where the pictures are")
    for flag, value, of in (
        ("--split", split, Kind.imagenet),
        ("--root", root, Kind.list),
        ("--picture-column", picture, Kind.parquet),
        ("--label-column", label, Kind.parquet),
    ):
        if value is not None and kind is not of:
            raise typer.BadParameter(f"{flag} is for {of.value}, not for {kind.value}")
    if kind is Kind.imagenet:
        return sources.open_imagenet(
            Path(src), split=(split or Split.auto).value, classes=classes, follow_links=follow_links
        )
    if kind is Kind.folder:
        return sources.FolderSource(Path(src), classes=classes, follow_links=follow_links)
    if kind is Kind.list:
        return sources.open_list(Path(src), root=root, classes=classes, follow_links=follow_links)
    if kind is Kind.webdataset:
        return sources.open_webdataset(src, classes=classes, follow_links=follow_links)
    return sources.open_parquet(
        src, picture=picture or "", label=label or "", classes=classes, follow_links=follow_links
    )


def _box_rules(boxes: Path | None, *, without: NoBox | None, **numbers: float | None) -> BoxRules | None:
    given: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    if without is not None:
        given["without"] = without.value
    if boxes is None:
        if given:
            raise typer.BadParameter("--box-margin, --min-box, --no-box and --keep-boxes go with --boxes DIR")
        return None
    from decodeonce.prep.recipe import BoxRules

    try:
        return BoxRules(**given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _work(workers: int | None, max_bad: str, on_bad: OnBad, task: int = 0, tasks: int = 1) -> Work:
    from decodeonce.prep.build import Work

    try:
        return Work(workers=workers, task=task, tasks=tasks, max_bad=max_bad, on_bad=on_bad.value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _class_list(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    from decodeonce.prep.sources.folder import ClassList
    from decodeonce.prep.sources.safe_open import read_small

    try:
        lines = [line.strip() for line in read_small(path).decode("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise typer.BadParameter(f"--classes {path}: {what}; expected a file with a class name a line") from None
    names = ClassList(filter(None, lines), str(path))
    if not names:
        raise typer.BadParameter(f"--classes {path}: no name in it; expected a class name a line")
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise typer.BadParameter(f"--classes {path}: {name!r} stands in it {times} times; every class has one label")
    return names


def run_build(job: Job) -> None:
    """Plan, decode, finish; say what came of it."""
    from decodeonce.cli.progress import build_progress
    from decodeonce.prep import build as builds
    from decodeonce.store import StorePaths

    check_alone(SHARED)
    say_found(job)
    if job.dry_run:
        return say_dry_run(job)
    was_finished = StorePaths(job.out).manifest.exists()
    with build_progress() as progress:
        manifest = builds.build(job.source, job.out, job.recipe, job.work, progress, job.expect)
    if was_finished:
        return say_built(job.out)
    _say_finished(job.out, manifest)


def run_plan(job: Job) -> None:
    """Write the plan and reserve the space; say what to do next."""
    from decodeonce.prep import build as builds

    check_alone(SHARED)
    say_found(job)
    if job.dry_run:
        return say_dry_run(job)
    say_storage(job.out)
    plan = builds.plan_unless_built(job.source, job.out, job.recipe, job.expect)
    if plan is None:
        return say_built(job.out)
    found = f"{counted(plan.candidates, 'picture')} found in {counted(len(plan.classes), 'class', 'classes')}"
    planned = f"{counted(plan.count, 'row')} in {counted(len(plan.blocks), 'block')}"
    say(f"{job.out}: {found}, {planned} planned; next: prep work {quoted(str(job.out))}")


build = command(run_build, "Plan, decode and finish: pictures to a store.")
plan = command(run_plan, "The first step of a build alone, with the same flags.")


def say_built(out: Path) -> None:
    """Tell that there is nothing to do: of a job that was sent twice this is the second."""
    say(f"{out}: finished already, nothing to do")


def say_found(job: Job) -> None:
    """Tell what was recognised, before it is listed."""
    say(f"{job.source.root}: {job.source.found}")


SHARED = "; let ranks share `prep work OUT`, between prep plan and prep finish"


def check_alone(advice: str = "") -> None:
    """A usage error under srun or mpiexec, where several would trip over each other; it ends with the advice."""
    from decodeonce.launch import find_rank

    rank = find_rank()
    if rank.world_size > 1:
        raise typer.BadParameter(f"{rank}, but this is for one process{advice}")


def say_storage(out: Path) -> None:
    """Tell, before anything is written, what the storage offers and asks for."""
    from decodeonce.prep.build.free_space import find_storage, sentences, stripe_advice

    storage = find_storage(out)
    advice = stripe_advice(out, storage)
    for sentence in [*sentences(storage), *([advice] if advice else [])]:
        say(sentence)


def say_dry_run(job: Job, where: Workplace | None = None) -> None:
    """Tell what a build would take there (default: here): bytes, files, room and time; write nothing."""
    from decodeonce.cli.dryrun import Here, dry_run
    from decodeonce.prep.build import is_built

    if is_built(job.source, job.out, job.recipe, job.expect):
        return say_built(job.out)
    where = where or Here(job.work.workers)
    for line in dry_run(job.source, job.out, job.recipe, where, job.work.allowance, expect=job.expect):
        say(line)


def _say_finished(out: Path, manifest: Manifest) -> None:
    from decodeonce.store import StorePaths
    from decodeonce.store.table import read_rejects

    listed = Counter(reject.action for reject in read_rejects(StorePaths(out).rejects))
    left_out = f"{listed['left out']} left out, " if listed["left out"] else ""
    rejects, oddities = counted(listed["rejected"], "reject"), counted(listed["kept"], "oddity", "oddities")
    rows = f"{counted(manifest.count, 'row')} in {counted(len(manifest.classes), 'class', 'classes')}"
    say(f"{out}: {rows}, {left_out}{rejects}, {oddities} (rejects.tsv)")


def work(
    out: Begun,
    task: Annotated[
        int | None, typer.Option(metavar="I", min=0, help="This task's number. (default: the launcher's)")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many tasks there are. (default: the launcher's)")
    ] = None,
    workers: Workers = None,
    on_bad: OnBadOption = OnBad.reject,
    max_bad: MaxBad = "0.1%",
) -> None:
    """Decode a task's blocks of a planned store: the task that is named, or that a job array and launcher give.

    Without either, every block that no journal has done: so a task that is lost is taken over. SIGUSR1 has it stop at
    the end of the blocks it is at, with exit code 75.
    """
    from decodeonce.cli.progress import build_progress
    from decodeonce.launch import find_idle_hosts
    from decodeonce.prep import build as builds
    from decodeonce.store import StorePaths

    share = _share(task, tasks)
    how = _work(workers, max_bad, on_bad, share.task, share.tasks)
    if StorePaths(out).manifest.exists():
        return say_built(out)
    say(f"{out}: {share}")
    if task is None and (idle := find_idle_hosts()):
        say(f"warning: {idle}", err=True)
    with build_progress() as progress:
        builds.work(out, how, progress)
    if StorePaths(out).manifest.exists():
        return say_built(out)
    say(f"{out}: task {share.task} of {share.tasks} is done; when all are: prep finish {quoted(str(out))}")


def _share(task: int | None, tasks: int | None) -> Task:
    from decodeonce.launch import Task, find_task

    if task is None:
        try:
            return find_task(tasks) or Task(0, 1, "every block that is not done")
        except ValueError as error:
            raise typer.BadParameter(f"{error} (--task I --tasks N)") from None
    if tasks is None:
        raise typer.BadParameter(f"--task {task} of how many? give --tasks N, too")
    return Task(task, tasks, "as named")


def finish(out: Begun, max_bad: MaxBad = "0.1%") -> None:
    """Close the gaps of rejects and write the manifest: a planned and worked store becomes a finished one."""
    from decodeonce.prep import build as builds
    from decodeonce.prep.build.max_bad import Allowance
    from decodeonce.store import StorePaths

    try:
        allowance = Allowance.parse(max_bad)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    was_finished = StorePaths(out).manifest.exists()
    manifest = builds.finish(out, allowance)  # which clears up where one was killed
    if was_finished:
        return say_built(out)
    _say_finished(out, manifest)
