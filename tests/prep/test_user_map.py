"""A user's map function: its arguments, its result, and its failures."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from decodeonce import BuildError, Stopped, host
from decodeonce.build import BoxRules, Recipe, WorkSettings, build, find_map, make_plan, work
from decodeonce.host import limited_memory
from decodeonce.prep.pixels.decode import Decoder
from decodeonce.sources import Entry, FolderSource, Undecodable
from decodeonce.store import open_store
from decodeonce.store.table import Reject, read_rejects
from tests.images import encoded, jpeg, make_image, reference_row

MODULE = """
import numpy as np
from PIL import Image

not_callable = 3

def inverted(pixels, sample):
    pixels[:] = 255 - pixels  # the map may change its argument in place
    return pixels

def halved(pixels, sample):
    height, width = pixels.shape[:2]
    return pixels[: height // 2, : width // 2]

def only_large(pixels, sample):
    return pixels if sample.width >= 60 else None

def raising(pixels, sample):
    raise ValueError(f"{sample} {pixels.shape} {pixels.dtype} {pixels.flags.writeable}")

def wrong(pixels, sample):
    return pixels.astype(np.float32)

def masked(pixels, sample):
    return np.ma.masked_less(pixels, 99)

def empty(pixels, sample):
    return pixels[:0]

kept = []

def keeping(pixels, sample):
    kept.append(np.empty(1 << 28, np.uint8))
    return pixels

def using_too_much_memory(pixels, sample):
    return np.empty(1 << 60, np.uint8)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "modules/maps_of_a_user.py"
    path.parent.mkdir()
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(str(path.parent))
    yield path
    sys.modules.pop("maps_of_a_user", None)


@pytest.fixture
def src(tmp_path: Path) -> Path:
    for name, width in (("cat/a.jpg", 50), ("cat/b.jpg", 70), ("dog/c.jpg", 90)):
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(width, 48, seed=width))
    return tmp_path / "src"


def build_with_map(tree: Path, out: Path, function: str, max_bad: str = "0") -> Path:
    recipe = Recipe(height=24, width=24, map=find_map(f"maps_of_a_user:{function}"))
    build(FolderSource(tree), out, recipe, WorkSettings(workers=1, max_bad=max_bad))
    return out


@pytest.mark.parametrize("function", ["inverted", "halved"])
def test_map_receives_rgb_pixels_before_the_resize(module: Path, src: Path, tmp_path: Path, function: str) -> None:
    (src / "dog/gray.jpg").write_bytes(jpeg(50, 50, mode="L"))
    (src / "dog/palette.png").write_bytes(encoded(make_image(50, 50).quantize(16), "PNG"))
    store = open_store(build_with_map(src, tmp_path / "out", function))
    assert len(store) == 5
    for row, sample in enumerate(store.samples):
        pixels = np.asarray(Image.open(src / sample.source).convert("RGB"))
        height, width, _ = pixels.shape
        mapped = 255 - pixels if function == "inverted" else pixels[: height // 2, : width // 2]
        expected = reference_row(encoded(Image.fromarray(mapped), "PNG"), 24, 24)
        np.testing.assert_array_equal(store.images[row], expected)
        assert (sample.width, sample.height) == (width, height)


def test_images_left_out_by_map_are_listed_but_not_rejected(module: Path, src: Path, tmp_path: Path) -> None:
    out = build_with_map(src, tmp_path / "out", "only_large")
    assert [sample.source for sample in open_store(out).samples] == ["dog/c.jpg", "cat/b.jpg"]
    found = list(read_rejects(out / "rejects.tsv"))
    assert found == [Reject("cat/a.jpg", "left out by maps_of_a_user:only_large", "left out")]


def test_exception_of_map_is_the_reject_reason(module: Path, src: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="none of the 3 images that were decoded can be stored"):
        build_with_map(src, tmp_path / "out", "raising")
    with pytest.raises(BuildError, match="every image was rejected or left out"):
        build_with_map(src, tmp_path / "out2", "raising", max_bad="100%")
    from decodeonce.prep.building.status import read_status

    reasons = {reject.source: reject.reason for reject in read_status(tmp_path / "out2").rejects}
    assert reasons["dog/c.jpg"] == (
        "maps_of_a_user:raising: ValueError: MapSample(source='dog/c.jpg', label=1, class_name='dog', width=90, "
        "height=48, box=None) (48, 90, 3) uint8 True"
    )


def test_result_that_is_not_an_image_is_rejected(module: Path, src: Path) -> None:
    for function, reason in (
        ("wrong", r"returned float32 \(48, 50, 3\), expected uint8"),
        ("empty", "returned an empty image"),
        ("masked", "what it returned has masked values, which a row cannot have; fill them"),
    ):
        decoder = Decoder(Recipe(height=24, width=24, map=find_map(f"maps_of_a_user:{function}")), ["cat"])
        with pytest.raises(Undecodable, match=rf"maps_of_a_user:{function}: {reason}"):
            decoder.row((src / "cat/a.jpg").read_bytes(), Entry(b"a.jpg", 0, 0, 0))


def test_memory_kept_by_map_does_not_count(module: Path, src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map keeps two arrays of 256 MiB; an image may take 64 MiB."""
    monkeypatch.setattr(host, "SPARE_BYTES", 0)
    decoder = Decoder(Recipe(height=24, width=24, map=find_map("maps_of_a_user:keeping")), ["cat"])
    data = (src / "cat/a.jpg").read_bytes()
    with limited_memory(1 << 26):
        for _ in range(2):
            assert decoder.row(data, Entry(b"a.jpg", 0, 0, 0)).width == 50
        with pytest.raises(MemoryError):
            np.empty(1 << 30, np.uint8)  # more than other tests may have freed meanwhile


def test_map_out_of_memory_stops_the_build(module: Path, src: Path, tmp_path: Path) -> None:
    message = r"\.jpg: maps_of_a_user:using_too_much_memory is out of memory; run the same command again with fewer"
    with pytest.raises(Stopped, match=message):
        build_with_map(src, tmp_path / "out", "using_too_much_memory")


def test_changed_map_is_an_error(module: Path, src: Path, tmp_path: Path) -> None:
    def recipe() -> Recipe:
        return Recipe(height=24, width=24, map=find_map("maps_of_a_user:inverted"))

    plan = make_plan(FolderSource(src), tmp_path / "out", recipe())
    assert plan.content["recipe"]["map"]["function"] == "maps_of_a_user:inverted"
    module.write_text(MODULE + "\n")
    with pytest.raises(BuildError, match="the map maps_of_a_user:inverted changed since the plan"):
        work(tmp_path / "out", WorkSettings(workers=1))
    with pytest.raises(BuildError, match="planned with a different recipe: xxh3 is"):
        make_plan(FolderSource(src), tmp_path / "out", recipe())
    module.write_text(MODULE)
    work(tmp_path / "out", WorkSettings(workers=1))


def test_map_that_cannot_be_imported_is_named(module: Path) -> None:
    for name, message in (
        ("maps_of_a_user", "expected package.module:function"),
        ("./maps_of_a_user.py:inverted", "./maps_of_a_user.py:inverted: expected package.module:function, such as"),
        ("maps_of_a_user:invert", "has no function invert; expected a function or class, such as inverted$"),
        ("maps_of_a_user:not_callable", "has no function not_callable; expected a function or class$"),
        ("maps_empty:f", "has no function f; expected a function or class$"),
        ("missing_maps:f", "No module named 'missing_maps'; run from the folder that contains missing_maps"),
        ("maps_broken:f", "importing maps_broken raised ZeroDivisionError"),
        ("itertools:chain", "itertools has no source file"),
    ):
        (module.parent / "maps_broken.py").write_text("1 / 0\n")
        (module.parent / "maps_empty.py").write_text("from pathlib import Path\ndef _hidden(): ...\n")
        with pytest.raises(BuildError, match=message):
            find_map(name)


def test_conflicting_settings_are_errors(module: Path) -> None:
    function = find_map("maps_of_a_user:inverted")
    with pytest.raises(ValueError, match="scaled_decode cannot be combined"):
        Recipe(map=function, scaled_decode=True)
    with pytest.raises(ValueError, match="kept boxes cannot be combined with a map"):
        Recipe(map=function, boxes=BoxRules(keep=2))
