"""`prep build`, `prep plan`, `prep work`, `prep finish`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from decodeonce.cli import parse

if TYPE_CHECKING:
    from decodeonce.launch import Task
    from decodeonce.prep import Recipe, Source, Work


class Kind(str, Enum):
    imagenet = "imagenet"
    folder = "folder"


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


class OnBad(str, Enum):
    reject = "reject"
    fail = "fail"


KindArgument = Annotated[
    Kind, typer.Argument(help="imagenet: SRC/train/<wnid>/*.JPEG; folder: SRC/<class>/…/<picture>.")
]
Src = Annotated[Path, typer.Argument(help="Where the pictures are.", metavar="SRC")]
Out = Annotated[Path, typer.Argument(help="The store to make, or to go on with.", metavar="OUT")]
Size = Annotated[str, typer.Option(help="Pixels of a row: 256, or HxW.")]
FitOption = Annotated[Fit, typer.Option(help="crop: Resize and CenterCrop as in torchvision; or stretch, or pad.")]
FilterOption = Annotated[Filter, typer.Option("--filter", help="How to resize.")]
FormatOption = Annotated[Format, typer.Option("--format", help="What the shards are.")]
ShardSize = Annotated[str, typer.Option(help="Bytes of a shard, at least one block.")]
Seed = Annotated[str | None, typer.Option(help="Permute the samples: a number, or none. (default: 0; none for val)")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes. (default: usable cores)")]
OnBadOption = Annotated[OnBad, typer.Option(help="List pictures that cannot be decoded, or fail at the first.")]
MaxBad = Annotated[str, typer.Option(help="More rejects than this fail the build: a share, or a number.")]
ExifOption = Annotated[Exif, typer.Option(help="EXIF rotation.")]
OnOddOption = Annotated[OnOdd, typer.Option(help="Pictures that decode although their data are damaged.")]
Scaled = Annotated[
    bool, typer.Option("--scaled-decode", help="Let libjpeg-turbo scale large pictures: faster, other bytes.")
]
Classes = Annotated[
    Path | None, typer.Option(help="A file with a class name a line: the label order. (default: sorted names)")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be built; write nothing.")]
SplitOption = Annotated[Split | None, typer.Option(help="Which part of an ImageNet tree. (default: auto)")]


@dataclass(frozen=True)
class Job:
    """What a build's command line asked for."""

    source: Source
    out: Path
    recipe: Recipe
    work: Work
    dry_run: bool


def command(run: Callable[[Job], None]) -> Callable[..., None]:
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
        dry_run: DryRun = False,
    ) -> None:
        height, width = parse.picture_size(size)
        shard_bytes, seed = parse.byte_size(shard_size), parse.shuffle_seed(shuffle_seed)
        how = _work(workers, max_bad, on_bad)
        source = _source(kind, src, split, _class_list(classes))
        from decodeonce.prep import Recipe

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
        )
        run(Job(source, out, recipe, how, dry_run))

    return parsed


def _source(kind: Kind, src: Path, split: Split | None, classes: list[str] | None) -> Source:
    from decodeonce.prep import FolderSource, open_imagenet

    if kind is Kind.imagenet:
        return open_imagenet(src, split=(split or Split.auto).value, classes=classes)
    if split is not None:
        raise typer.BadParameter(f"--split is for imagenet; point SRC at the folder of classes: {src / split.value}")
    return FolderSource(src, classes=classes)


def _work(workers: int | None, max_bad: str, on_bad: OnBad, task: int = 0, tasks: int = 1) -> Work:
    from decodeonce.prep import Work

    try:
        return Work(workers=workers, task=task, tasks=tasks, max_bad=max_bad, on_bad=on_bad.value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _class_list(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        names = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}; expected a class name a line") from None
    return [name for name in names if name]


def run_build(job: Job) -> None:
    """Plan, decode, finish; say what came of it."""
    from decodeonce import prep
    from decodeonce.cli.progress import build_progress

    _check_alone()
    if job.dry_run:
        return _say_plan(job)
    with build_progress() as progress:
        manifest = prep.build(job.source, job.out, job.recipe, job.work, progress)
    _say_finished(job.out, manifest.count)


def run_plan(job: Job) -> None:
    """Write the plan and reserve the space; say what to do next."""
    from decodeonce import prep

    _check_alone()
    say_storage(job.out)
    if job.dry_run:
        return _say_plan(job)
    plan = prep.make_plan(job.source, job.out, job.recipe)
    typer.echo(f"{job.out}: {plan.count} rows in {len(plan.blocks)} blocks are planned; next: prep work {job.out}")


def _check_alone() -> None:
    """A build and a plan are one process's: under srun or mpiexec, several would trip over each other."""
    from decodeonce.launch import find_rank

    rank = find_rank()
    if rank.world_size > 1:
        raise typer.BadParameter(
            f"{rank}, but this is for one process; let ranks share `prep work OUT`, between prep plan and prep finish"
        )


def say_storage(out: Path) -> None:
    """Tell, before anything is written, what the storage offers and asks for."""
    from decodeonce.prep.preflight import find_storage, sentences, stripe_advice

    storage = find_storage(out)
    advice = stripe_advice(out, storage)
    for sentence in [*sentences(storage), *([advice] if advice else [])]:
        typer.echo(sentence)


def _say_plan(job: Job) -> None:
    from decodeonce.prep.blocks import Blocks
    from decodeonce.prep.plan import scan

    listing = scan(job.source)
    rows, row_bytes = len(listing), job.recipe.row_bytes
    shards = -(-rows // Blocks.of(rows, row_bytes, job.recipe.shard_size).shard_rows)
    typer.echo(
        f"{rows} rows of {job.recipe.height}x{job.recipe.width}x3 in {len(job.source.classes())} classes, "
        f"{rows * row_bytes / 1e9:.3f} GB in {shards} {job.recipe.container} shards; "
        f"{len(listing.rejects)} files cannot be rows; nothing was written"
    )


def _say_finished(out: Path, count: int) -> None:
    from decodeonce.store import StorePaths
    from decodeonce.store.table import read_rejects

    listed = [reject.action for reject in read_rejects(StorePaths(out).rejects)]
    bad = listed.count("rejected")
    typer.echo(f"{out}: {count} rows, {bad} rejects, {len(listed) - bad} oddities (rejects.tsv)")


def work(
    out: Out,
    task: Annotated[int | None, typer.Option(min=0, help="This task's number. (default: the launcher's)")] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="How many tasks there are. (default: the launcher's)")
    ] = None,
    workers: Workers = None,
    on_bad: OnBadOption = OnBad.reject,
    max_bad: MaxBad = "0.1%",
) -> None:
    """Decode a task's blocks of a planned store: the task that is named, or that a job array and launcher give.

    Without either, every block that no journal has done: so a task that is lost is taken over. SIGUSR1 has it stop at
    the end of the blocks it is at, with exit code 75.
    """
    from decodeonce import prep
    from decodeonce.cli.progress import build_progress
    from decodeonce.store import StorePaths

    share = _share(task, tasks)
    how = _work(workers, max_bad, on_bad, share.task, share.tasks)
    if StorePaths(out).manifest.exists():
        typer.echo(f"{out}: finished already, nothing to do")
        return
    typer.echo(f"{out}: {share}")
    with build_progress() as progress:
        prep.work(out, how, progress)
    typer.echo(f"{out}: task {share.task} of {share.tasks} is done; when all are: prep finish {out}")


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


def finish(out: Out, max_bad: MaxBad = "0.1%") -> None:
    """Close the gaps of rejects and write the manifest: a planned and worked store becomes a finished one."""
    from decodeonce import prep
    from decodeonce.prep.allowance import Allowance

    try:
        allowance = Allowance.parse(max_bad)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _say_finished(out, prep.finish(out, allowance).count)
