"""Every Python block of README.md and docs/*.md runs.

The blocks of a page run in order and share a namespace. They run in a folder with `imagenet/` (a tree of generated
images), `train.store` (512 rows of 256x256, the columns "weight" and "mask"), `val.store` (256 rows), `half.store` (its
images as yuv420), `quarter.store` (as bc4), `boxes.store` (its images with boxes), `scenes.store` (its images with
masks), `test.store`, which is val.store, and `part`, to which train.store is staged. Before a block runs, its number of
epochs becomes 1, its models become small, and if there is no GPU, its device becomes the CPU. The launcher's variables
are set to one rank.
"""

import gc
import math
import os
import re
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from decodeonce.build import BoxRules, Recipe, WorkSettings, build
from decodeonce.prep.sources.imagenet import AnySplit, open_imagenet
from decodeonce.sources import BoxedSource, PairedSource
from decodeonce.store import add_column, open_store, stage_store
from decodeonce.store.layout import PixelsName
from tests.docs.pages import SHELL, WRITTEN, Block, blocks, name_of, prose
from tests.forms.boxed import xml
from tests.images import jpeg
from tests.libraries import library

CLASSES = ("n01440764", "n01443537", "n01484850", "n02123045")
DIFFERENT_IMAGES = 16
ONE_EPOCH = (
    (re.compile(r"(for epoch in range\((?:\w+\.epoch, )?)\d+\)"), r"\g<1>1)"),
    (re.compile(r"\b(max_epochs|num_train_epochs)=\d+"), r"\g<1>=1"),
    (re.compile(r"\b(EPOCHS(?:, \w+)* = )\d+"), r"\g<1>1"),
)
# These do not support the newest Python, or `make test` does not install them.
TRANSFORMS = ("torchvision", "albumentations", "kornia")
OPTIONAL = ("accelerate", "pytorch_lightning", *TRANSFORMS, "timm", "transformers")
ON_THE_CPU = (('"cuda"', '"cpu"'), (".cuda()", ".cpu()"), ('"nccl"', '"gloo"'))
SMALL_MODELS = (
    ('"resnet50"', '"test_resnet"'),
    ("ResNetConfig(num", "ResNetConfig(embedding_size=16, hidden_sizes=[16], depths=[1], layer_type='basic', num"),
    ("widths=(16, 32, 64)", "widths=(2, 4, 8)"),
    ("torch.compile(model)", 'torch.compile(model, backend="aot_eager")'),  # inductor takes a minute
)
PAGES = {name_of(page): page for page in WRITTEN}
FRAMEWORKS = "docs/how-to/frameworks.md"


def python_blocks(name: str) -> Iterator[tuple[str, list[Block]]]:
    """Yield a page and its Python blocks.

    The sections of FRAMEWORKS need different libraries, so yield each of them, after the blocks that all of them share.
    """
    page = PAGES[name]
    found = [block for block in blocks(page) if block.language == "python"]
    if name != FRAMEWORKS:
        yield name, found
        return
    starts = {line: text[3:] for line, text in enumerate(prose(page).splitlines(), 1) if text.startswith("## ")}
    shared = [block for block in found if block.line < min(starts)]
    for (start, title), end in zip(starts.items(), [*list(starts)[1:], math.inf], strict=True):
        yield f"{name}#{title}", shared + [block for block in found if start < block.line < end]


PYTHON = {part: found for name in PAGES for part, found in python_blocks(name) if found}
RECIPES = "docs/how-to/data/"  # test_recipes.py runs these pages
# JAX takes 0.4 GB, so it is not in .venv: `.ci/legs` runs its section.
EACH = [name for name in PYTHON if not name.startswith(RECIPES) and (name != f"{FRAMEWORKS}#JAX" or find_spec("jax"))]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with imagenet/, train.store and val.store."""
    root = tmp_path_factory.mktemp("blocks")
    images = [jpeg(300 + 4 * number, 280, seed=number) for number in range(DIFFERENT_IMAGES)]
    rows_of: dict[AnySplit, int] = {"train": 512, "val": 256}
    annotations = root / "annotations"
    annotations.mkdir()
    for split, rows in rows_of.items():
        for number in range(rows):
            folder = root / "imagenet" / split / CLASSES[number % len(CLASSES)]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{folder.name}_{number}.JPEG").write_bytes(images[number % DIFFERENT_IMAGES])
            (annotations / f"{folder.name}_{number}.xml").write_text(xml(("dog", (10, 20, 90, 80 + number % 64))))
        source = open_imagenet(root / "imagenet", split=split)
        build(source, root / f"{split}.store", Recipe(shuffle_seed=0), WorkSettings(workers=1))
    packed: dict[str, PixelsName] = {"half.store": "yuv420", "quarter.store": "bc4"}
    for name, pixels in packed.items():
        build(source, root / name, Recipe(shuffle_seed=0, pixels=pixels), WorkSettings(workers=1))
    rules = BoxRules(keep=8)
    boxed = BoxedSource(open_imagenet(root / "imagenet", split="val"), annotations, rules)
    build(boxed, root / "boxes.store", Recipe(shuffle_seed=0, boxes=rules), WorkSettings(workers=1))
    masks = root / "masks"
    for image in (root / "imagenet/val").rglob("*.JPEG"):
        mask = masks / image.relative_to(root / "imagenet").with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(image) as opened:
            Image.fromarray(np.asarray(opened.convert("L")) // 13).save(mask)
    scenes = PairedSource(open_imagenet(root / "imagenet", split="val"), {"mask": masks})
    build(scenes, root / "scenes.store", Recipe(shuffle_seed=0), WorkSettings(workers=1))
    count, rng = rows_of["train"], np.random.default_rng(0)
    add_column(root / "train.store", "weight", np.ones(count, np.float32))
    add_column(root / "train.store", "mask", rng.integers(0, 2, (count, 256, 256), np.uint8))
    stage_store(open_store(root / "train.store"), root / "part", rows=range(count))
    return root


@pytest.fixture
def folder(stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the blocks of a page run."""
    for name in (
        "imagenet",
        "train.store",
        "val.store",
        "half.store",
        "quarter.store",
        "boxes.store",
        "scenes.store",
        "part",
    ):
        (tmp_path / name).symlink_to(stores / name)
    (tmp_path / "test.store").symlink_to(stores / "val.store")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of torchrun if the page uses torch.distributed."""
    if "torch.distributed" in text_of(request.node.callspec.params["name"]):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}
        for variable, value in variables.items():
            monkeypatch.setenv(variable, str(value))


def text_of(name: str) -> str:
    return "".join(block.text for block in PYTHON[name])


def adapted(text: str) -> str:
    """Adapt the code of a block to this test."""
    for pattern, one in ONE_EPOCH:
        text = pattern.sub(one, text)
    for gpu, cpu in ON_THE_CPU:
        text = text if torch.cuda.is_available() else text.replace(gpu, cpu)
    for large, small in SMALL_MODELS:
        text = text.replace(large, small)
    return (
        text.replace('"/data/imagenet', '"imagenet')
        .replace('"/local/', '"')
        .replace('"s3://bucket/', f'"file://{os.getcwd()}/')
    )


def run_block(block: Block, page: Path, names: dict[str, object]) -> None:
    """Run a block. Tracebacks have the line numbers of the page."""
    source = "\n" * (block.line - 1) + adapted(block.text)
    exec(compile(source, str(page), "exec", dont_inherit=True), names)


@pytest.mark.long
@pytest.mark.parametrize("name", EACH)
@pytest.mark.usefixtures("folder", "one_rank")
@pytest.mark.filterwarnings("ignore")  # Lightning warns on machines with srun
def test_blocks_of_page_run(name: str) -> None:
    for package in OPTIONAL:
        if re.search(rf"(import|from) {re.escape(package)}\b", text_of(name)):
            library(package)
    names: dict[str, object] = {"__name__": "__main__"}
    try:
        for block in PYTHON[name]:
            if not block.not_run:
                run_block(block, PAGES[name.partition("#")[0]], names)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        names.clear()
        gc.collect()


def test_masks_with_other_names_move_to_the_names_of_their_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "docs/how-to/segmentation.md"
    [block] = [block for block in PYTHON[name] if "MASK, IMAGE" in block.text]
    for file in ("photos/img_001.tif", "photos/mask_001.png", "photos/a/img_2.tif", "photos/a/mask_2.png"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    run_block(block, PAGES[name], {})
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert files == {"photos/img_001.tif", "masks/img_001.png", "photos/a/img_2.tif", "masks/a/img_2.png"}


def test_tiles_are_cut_into_parts_of_their_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "docs/how-to/segmentation.md"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)  # which the script sets
    [block] = [block for block in PYTHON[name] if "SIDE" in block.text]
    pixels = np.random.default_rng(0).integers(0, 256, (1100, 600, 3), np.uint8)
    (tmp_path / "big/a").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "big/a/1.tif")
    run_block(block, PAGES[name], {})
    found = {path.name: np.asarray(Image.open(path)) for path in (tmp_path / "photos/a").iterdir()}
    assert found.keys() == {"1_00000_00000.png", "1_00512_00000.png"}
    assert (found["1_00512_00000.png"] == pixels[512:1024, :512]).all()


def test_depth_of_16_bits_is_scaled_and_unknown_stays_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "docs/how-to/segmentation.md"
    [block] = [block for block in PYTHON[name] if "depth16" in block.text]
    (tmp_path / "depth16/a").mkdir(parents=True)
    depth = np.array([[0, 1, 256], [10240, 20480, 65535]], np.uint16)
    Image.fromarray(depth).save(tmp_path / "depth16/a/1.png")
    run_block(block, PAGES[name], {})
    assert np.asarray(Image.open(tmp_path / "depth/a/1.png")).tolist() == [[0, 1, 3], [128, 255, 255]]


def test_languages_of_blocks_are_known() -> None:
    """Python blocks with another language (py, pycon) would not be run, and command lines would not be parsed."""
    languages = {block.language for page in WRITTEN for block in blocks(page)}
    assert {language for language in languages if not language.startswith("{")} <= {"python", "text", "toml", *SHELL}
