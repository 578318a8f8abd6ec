"""Compare the stores that a commit builds with those of the working tree: `python -m tests.oracle COMMIT [CASE ...]`.

Every case is a chain of `prep` commands. Both sides run it on the same sources, and must leave the same files, exit
codes and messages. The folder build/oracle/COMMIT keeps the sources and the results of the commit, so that the next run
builds only the stores of the working tree. Remove build/oracle after you change installed packages.
"""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.server import ThreadingHTTPServer
from itertools import chain, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import xxhash
from PIL import Image

from tests.forms import imagenet
from tests.forms.boxed import xml
from tests.forms.folder import write_folder
from tests.forms.form import Pic
from tests.forms.parquet import images, write_table
from tests.forms.webdataset import sample, write_tar
from tests.images import encoded, exif, jpeg, make_image, raw_png, replaced, tree_bytes
from tests.remote.conftest import Handler, serving

ROOT = Path(__file__).parents[1]
AT_ONCE = 2
MOST_LINES = 5  # of a table that are printed
BLOCKS_BEFORE_KILL = 3  # these have one line each in OUT/.build/**/*.log
REFUSED = "refused-"  # begins the names of the cases whose last command must fail
# A block has 12 rows of 160x192, and a shard has one block. Later flags of a case override these.
BUILD = ("--size", "160x192", "--shard-size", "1MiB", "--max-bad", "50%", "--workers", "1")
DEFAULTS = {"build": BUILD, "plan": BUILD, "work": ("--max-bad", "50%", "--workers", "1")}
DEFAULTS |= {"finish": ("--max-bad", "50%"), "convert": ("--workers", "1")}
WNIDS = ("n01440764", "n01443537", "n01484850")
CLASSES = ("a cat", "dog", "été")
MODULE = """
from pathlib import Path

paths = sorted(Path(__file__).with_name("photos").rglob("*.jpg"))

class Photos:
    classes = ["a cat", "dog", "été"]

    def __len__(self):
        return len(paths)

    def __getitem__(self, index):
        return paths[index].read_bytes(), self.classes.index(paths[index].parts[-2]), {"score": index / 7}

class Unlabeled(Photos):
    def __getitem__(self, index):
        return paths[index].read_bytes()

def inverted(pixels, sample):
    return 255 - pixels

def not_narrow(pixels, sample):
    return pixels if sample.width > 60 else None
"""
# The stores that cases convert, repair and stage, built by the commit.
STORES = {
    "npy": "build imagenet imagenet OUT",
    "hdf5": "build folder photos OUT --format hdf5",
    "yuv420": "build imagenet imagenet OUT --pixels yuv420",
    "masks": "build folder photos OUT --paired mask=masks --paired target:rgb=photos",
    "boxes": "build imagenet imagenet OUT --boxes ilsvrc --keep-boxes 3 --format hdf5 --pixels yuv420",
    "tar": "build imagenet tars OUT --split train --format hdf5",
    "wide": "build imagenet imagenet OUT --size 512",
    "columns": "build webdataset shards OUT --column score --column pair",
}
# Flags of the kinds and of rows. OUT stands for the store, and URL for a web server of the sources.
CASES = {
    "imagenet": "build imagenet imagenet OUT",
    "imagenet-hdf5-yuv420": "build imagenet imagenet OUT --format hdf5 --pixels yuv420",
    "imagenet-val": "build imagenet val OUT --pixels yuv420",
    "imagenet-val-tar": "build imagenet tars OUT --split val --shuffle-seed 3 --format hdf5",
    "imagenet-tar-in-tar": "build imagenet tars OUT --split train --exif apply",
    "imagenet-class-tars": "build imagenet class-tars OUT --format hdf5 --fit pad --filter box",
    "imagenet-zip": "build imagenet kaggle OUT --split train --pixels yuv420 --on-damaged keep-truncated",
    "imagenet-zip-val": "build imagenet kaggle OUT --split val --format hdf5 --scaled-decode --size 32",
    "imagenet-links": "build imagenet imagenet OUT --follow-links --classes classes.txt",
    "imagenet-boxes": "build imagenet imagenet OUT --boxes ilsvrc --box-margin 0.1 --min-box 8",
    "imagenet-kept-boxes": "build imagenet imagenet OUT --boxes ilsvrc --keep-boxes 2 --format hdf5 --pixels yuv420",
    "imagenet-map": "build imagenet imagenet OUT --map oracle_module:inverted --pixels yuv420",
    "folder": "build folder photos OUT",
    "folder-hdf5": "build folder photos OUT --format hdf5 --fit stretch --filter lanczos",
    "folder-yuv420": "build folder photos OUT --pixels yuv420 --fit pad --filter bicubic",
    "folder-hdf5-yuv420": "build folder photos OUT --format hdf5 --pixels yuv420 --shuffle-seed none",
    "folder-no-labels": "build folder photos OUT --no-labels --suffix .dat --size 255",
    "folder-exif": "build folder photos OUT --exif apply --shard-size 10MB --workers 2",
    "folder-levels": "build folder photos OUT --levels 0:4095 --on-damaged reject",
    "folder-scaled": "build folder photos OUT --scaled-decode --size 40x48 --levels auto --on-damaged keep-truncated",
    "folder-links": "build folder photos OUT --follow-links --format hdf5",
    "folder-splits": "build folder splits OUT --splits-as-classes",
    "folder-masks": "build folder photos OUT --paired mask=masks --paired target:rgb=photos --exif apply",
    "folder-masks-hdf5-yuv420": "build folder photos OUT --paired mask=masks --format hdf5 --pixels yuv420",
    "folder-coco": "build folder photos OUT --boxes coco.json --without-box skip --fit stretch",
    "folder-coco-kept": "build folder photos OUT --boxes coco.json --keep-boxes 3 --fit pad --paired mask=masks",
    "folder-voc": "build folder photos OUT --boxes voc --box-origin 1 --format hdf5",
    "folder-map": "build folder photos OUT --map oracle_module:not_narrow --format hdf5",
    "list-csv": "build list list.csv OUT --column score --image-column file --label-column kind",
    "list-csv-hdf5": "build list list.csv OUT --column pair --image-column file --no-labels --format hdf5",
    "list-tsv": "build list list.tsv OUT --root photos --pixels yuv420 --shuffle-seed none",
    "list-txt": "build list list.txt OUT --root photos --suffix .jpg --exif apply --format hdf5 --pixels yuv420",
    "list-voc": "build list list.txt OUT --root photos --suffix .jpg --boxes voc --without-box skip",
    "list-coco": "build list list.txt OUT --root photos --suffix .jpg --boxes coco.json --keep-boxes 1 --format hdf5",
    "webdataset": "build webdataset shards/{0000..0002}.tar OUT --column score",
    "webdataset-hdf5": "build webdataset shards OUT --format hdf5 --label-suffix cls --shuffle-seed none",
    "webdataset-gzip": "build webdataset gzip OUT --pixels yuv420 --column score --column pair",
    "webdataset-hdf5-yuv420": "build webdataset gzip OUT --format hdf5 --pixels yuv420 --no-labels --shuffle-seed 5",
    "webdataset-masks": "build webdataset shards OUT --paired mask=seg.png --image-suffix jpg --on-damaged reject",
    "webdataset-dots": "build webdataset shards OUT --last-dot --no-labels",
    "parquet": "build parquet tables OUT --column score --image-column image --label-column label",
    "parquet-hdf5": "build parquet tables/0.parquet OUT --no-labels --format hdf5 --shuffle-seed 1",
    "parquet-yuv420": "build parquet tables OUT --label-column label --pixels yuv420 --exif apply --levels auto",
    "dataset": "build dataset oracle_module:Photos OUT",
    "dataset-hdf5-yuv420": "build dataset oracle_module:Photos OUT --format hdf5 --pixels yuv420 --column score",
    "dataset-no-labels": "build dataset oracle_module:Unlabeled OUT --no-labels --map oracle_module:inverted",
    # sources on a web server
    "web-imagenet": "build imagenet URL/val OUT",
    "web-list": "build list list.txt OUT --root URL/photos --suffix .jpg --format hdf5",
    "web-webdataset": "build webdataset URL/shards/{0000..0002}.tar OUT --pixels yuv420",
    "web-parquet": "build parquet URL/tables/1.parquet OUT --image-column image --label-column label",
    "web-zip": f"build imagenet URL/kaggle/{imagenet.ZIP} OUT --split val --format hdf5 --pixels yuv420",
    "web-stage": "stage URL/stores/npy OUT --node-rank 1 --node-count 3",
    # tasks, and processes that are killed
    "tasks": "plan imagenet imagenet OUT; work OUT --task 0 --tasks 2; work OUT --task 1 --tasks 2; finish OUT",
    "tasks-hdf5": "plan list list.csv OUT --image-column file --label-column kind --format hdf5; "
    "work OUT --task 2 --tasks 3; work OUT --task 0 --tasks 3; work OUT --task 1 --tasks 3; finish OUT",
    "tasks-webdataset": "plan webdataset gzip OUT --pixels yuv420; work OUT --workers 2; finish OUT; finish OUT",
    "kill": "kill build imagenet imagenet OUT --size 512; build imagenet imagenet OUT --size 512",
    "kill-hdf5-yuv420": "kill build parquet tables OUT --image-column image --label-column label --size 640 "
    "--format hdf5 --pixels yuv420; build parquet tables OUT --image-column image --label-column label --size 640 "
    "--format hdf5 --pixels yuv420",
    "kill-work": "plan folder photos OUT --size 512 --paired mask=masks; kill work OUT; work OUT; finish OUT",
    "kill-convert": "kill convert stores/wide OUT --pixels yuv420; convert stores/wide OUT --pixels yuv420",
    # stores from stores
    "convert-hdf5": "convert stores/npy OUT --format hdf5 --sort class",
    "convert-npy": "convert stores/hdf5 OUT --format npy --shuffle-seed 4 --shard-size 10MB",
    "convert-yuv420": "convert stores/npy OUT --pixels yuv420 --sort source",
    "convert-rgb": "convert stores/yuv420 OUT --pixels rgb --format hdf5 --rows 3:25",
    "convert-size": "convert stores/npy OUT --size 80x96 --filter lanczos --workers 2",
    "convert-size-yuv420": "convert stores/boxes OUT --size 80x96 --shard-size 10MB",
    "convert-select": "convert stores/columns OUT --class 1 --match '*[0-5]*' --format hdf5",
    "convert-masks": "convert stores/masks OUT --size 80x96 --class dog --class 'a cat' --sort source",
    "convert-merge": "convert stores/npy stores/tar OUT --shuffle-seed 2",
    "convert-boxes": "convert stores/boxes OUT --format npy --pixels rgb --sort class",
    "repair": "copy damaged/npy OUT; repair OUT --from imagenet",
    "repair-copy": "copy damaged/hdf5 OUT; repair OUT --from stores/hdf5",
    "repair-masks": "copy damaged/masks OUT; repair OUT --from photos --paired mask=masks --paired target:rgb=photos",
    "repair-yuv420": "copy damaged/boxes OUT; repair OUT --from imagenet",
    "repair-columns": "copy damaged/columns OUT; repair OUT --from shards",
    "stage": "stage stores/npy OUT --node-rank 0 --node-count 2",
    "stage-hdf5-yuv420": "stage stores/boxes OUT --rank 2 --world-size 4",
    "stage-masks": "stage stores/masks OUT --rank 1 --world-size 3",
    # commands that must fail
    f"{REFUSED}bad": "build folder photos OUT --max-bad 0",
    f"{REFUSED}on-bad": "build imagenet imagenet OUT --on-bad fail",
    f"{REFUSED}expect": "build list list.csv OUT --image-column file --label-column kind --expect 5",
    f"{REFUSED}odd-size": "build folder photos OUT --pixels yuv420 --size 63",
    f"{REFUSED}gzip": "build imagenet gzipped OUT",
    f"{REFUSED}columns": "build parquet tables OUT --image-column image --label-column label --column nothing",
    f"{REFUSED}other-recipe": "plan imagenet imagenet OUT; build imagenet imagenet OUT --size 96",
    f"{REFUSED}unfinished": "plan dataset oracle_module:Photos OUT; work OUT --task 0 --tasks 2; finish OUT",
    f"{REFUSED}merge": "convert stores/npy stores/yuv420 stores/masks OUT",
    f"{REFUSED}repair": "copy damaged/npy OUT; repair OUT --from photos",
    f"{REFUSED}web": "build webdataset URL/nothing.tar OUT",
}


def odd_images() -> dict[str, bytes]:
    """Return images of unusual kinds by file name; some are damaged, and some are no images."""
    gray = (np.arange(50 * 70).reshape(50, 70, 1) % 4096).astype(np.uint16)
    photo = jpeg(90, 110, seed=7)
    return {
        "gray ½.jpg": jpeg(70, 50, seed=1, mode="L"),
        "cmyk.jpg": jpeg(64, 48, seed=2, mode="CMYK"),
        "progressive #1.jpg": jpeg(81, 57, seed=3, progressive=True),
        "turned.jpg": jpeg(90, 44, seed=4, exif=exif(6)),
        "mirrored.jpg": jpeg(50, 77, seed=5, exif=exif(4)),
        "large.jpg": jpeg(400, 300, seed=6),
        "sixteen.png": raw_png(gray, 0),
        "alpha.png": encoded(make_image(45, 60, seed=8, mode="RGBA"), "PNG"),
        "palette.png": encoded(make_image(45, 60, seed=9).quantize(16), "PNG"),
        "named.JPEG": encoded(make_image(60, 61, seed=10), "PNG"),
        "truncated.jpg": photo[: len(photo) * 2 // 3],
        "damaged.jpg": replaced(photo, len(photo) // 2, b"\xff\0" * 3),
        "empty.jpg": b"",
        "text %s.jpg": b"no image",
        os.fsdecode(b"\xff\n.jpg"): jpeg(60, 40, seed=11),
    }


def write_sources(root: Path) -> None:
    """Write the sources of all cases."""
    photos = {f"{n} {'ñ' * (n % 3)}.jpg": jpeg(40 + 37 * n % 80, 40 + 53 * n % 80, seed=20 + n) for n in range(20)}
    photos |= odd_images()
    pics = [Pic(WNIDS[n % 3], f"{WNIDS[n % 3]}_{n}", data) for n, data in enumerate(photos.values())]
    classed = {f"{CLASSES[n % 3]}/{name}": data for n, (name, data) in enumerate(photos.items())}
    _write_imagenet(root, pics)
    _write_photos(root, classed)
    _write_lists(root, classed)
    _write_archives(root, [*photos.values()])
    (root / "oracle_module.py").write_text(MODULE)


def _write_imagenet(root: Path, pics: list[Pic]) -> None:
    train = write_folder(root / "imagenet/train", pics)
    (root / "outside.JPEG").write_bytes(jpeg(70, 70, seed=50))
    (train / WNIDS[0] / "outside.JPEG").symlink_to("../../../outside.JPEG")
    (train / WNIDS[1] / "inside.JPEG").symlink_to(f"{WNIDS[1]}_1.JPEG")
    (train / WNIDS[2] / "dangling.JPEG").symlink_to("nowhere")
    (root / "classes.txt").write_text("\n".join(reversed(WNIDS)))
    whole = imagenet.mapping(WNIDS)
    val = {"LOC_val_solution.csv": imagenet.solution(pics), "LOC_synset_mapping.txt": whole}
    imagenet.write(root / "val", imagenet.flat(pics) | val)
    train_tar = imagenet.tar_bytes(imagenet.class_tars(pics))
    devkit = {f"{imagenet.DEVKIT}.tar.gz": imagenet.tar_bytes(imagenet.devkit(pics), "w:gz")}
    val_tar = {imagenet.VAL_TAR: imagenet.tar_bytes(imagenet.flat(pics, "."))}
    imagenet.write(root / "tars", {imagenet.TRAIN_TAR: train_tar, "LOC_synset_mapping.txt": whole} | devkit | val_tar)
    imagenet.write(root / "class-tars/train", imagenet.class_tars(pics))
    zipped = imagenet.kaggle(pics, "train") | imagenet.kaggle(pics, "val")
    imagenet.write(root / "kaggle", {imagenet.ZIP: imagenet.zip_bytes(zipped)})
    gzipped = imagenet.tar_bytes(imagenet.class_tars(pics), "w:gz")
    imagenet.write(root / "gzipped", {f"{imagenet.TRAIN_TAR}.gz": gzipped})
    for n, pic in enumerate(pics):
        _write_xml(root / f"ilsvrc/{pic.wnid}/{pic.stem}.xml", "ILSVRC_2012", pic.wnid, n)


def _write_photos(root: Path, classed: dict[str, bytes]) -> None:
    listed, objects = list[dict[str, Any]](), list[dict[str, Any]]()
    imagenet.write(root / "photos", classed | {"dog/deep/er/0.jpg": jpeg(51, 52, seed=51), "dog/b.dat": jpeg(seed=52)})
    imagenet.write(root / "splits", {f"{split}/x/0.jpg": jpeg(seed=ord(split[0])) for split in ("train", "val")})
    (root / "photos/dog/outside.jpg").symlink_to("../../outside.JPEG")
    for n, name in enumerate(classed):
        mask = root / "masks" / Path(name).with_suffix(".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        if "sixteen" not in name:  # an image without a mask
            mask.write_bytes(_mask_of(classed[name]))
        if n % 4:
            _write_xml(root / f"voc/{Path(name).with_suffix('.xml')}", "The VOC2007 Database", CLASSES[n % 3], n)
            listed.append({"id": n, "file_name": name, "width": 60, "height": 50})
            boxes = [[n, 5, 20.5, 30], [1, 2, 3 + n, 3]][: 1 + n % 2]
            objects += [{"image_id": n, "category_id": 7 + n % 2, "bbox": box, "iscrowd": 0} for box in boxes]
    categories = [{"id": 7, "name": "dog"}, {"id": 8, "name": "ball"}]
    (root / "coco.json").write_text(json.dumps({"images": listed, "annotations": objects, "categories": categories}))


def _mask_of(photo: bytes) -> bytes:
    """Return a mask of four classes as a PNG, in the size of a photo."""
    try:
        width, height = Image.open(io.BytesIO(photo)).size
    except OSError:
        width, height = 30, 20
    return encoded(make_image(width, height, mode="L").point([level // 64 for level in range(256)]), "PNG")


def _write_xml(path: Path, database: str, name: str, n: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    objects = [(each, (2 + n % 9, 3, 30 + n, 35)) for each in (name, "ball")[: n % 3]]
    path.write_text(xml(*objects, size=(60, 50), database=database))


def _write_lists(root: Path, classed: dict[str, bytes]) -> None:
    names = [name for name in classed if "\n" not in name]
    lines = [f'"photos/{name}",{name.partition("/")[0]},{n / 7},{n % 5}' for n, name in enumerate([*names, "gone.jpg"])]
    (root / "list.csv").write_text("\n".join(["file,kind,score,pair", *lines, lines[0]]))
    (root / "list.tsv").write_text("".join(f"{name}\t{name.partition('/')[0]}\r\n" for name in names))
    (root / "list.txt").write_text("".join(name.removesuffix(".jpg") + "\n" for name in names if name.endswith(".jpg")))


def _write_archives(root: Path, photos: list[bytes]) -> None:
    samples = [
        [
            *sample(f"set/{n:03d}", data, cls=n % 3, json={"score": n / 7, "pair": [n, -n]}),
            (f"set/{n:03d}.seg.png", _mask_of(data)),
        ]
        for n, data in enumerate(photos)
    ]
    table = {"image": images([(data, None) for data in photos]), "label": [n % 3 for n in range(len(photos))]}
    for part in range(3):
        write_tar(root / f"shards/{part:04d}.tar", chain(*samples[part::3]))
        write_tar(root / f"gzip/{part:04d}.tgz", chain(*samples[part::3]), "w:gz")
        columns: dict[str, Any] = {name: values[part::3] for name, values in table.items()}
        scores = [n / 7 for n in range(len(columns["label"]))]
        write_table(root / f"tables/{part}.parquet", columns | {"score": scores}, names=CLASSES, group=4)


class Files(Handler):
    """Serves the files below `root` as a web server that answers ranges and lists folders."""

    root: Path

    def do_GET(self) -> None:
        path = self.root / unquote(self.path.partition("?")[0], errors="surrogateescape").strip("/")
        if path.is_dir():
            names = [f"{item.name}/" if item.is_dir() else item.name for item in sorted(path.iterdir())]
            body = "".join(f'<a href="{quote(os.fsencode(name))}">x</a>\n' for name in names)
            self.answer(200, body.encode(), Content_Type="text/html")
        elif not path.is_file():
            self.answer(404, b"")
        elif asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or ""):
            data, first, last = path.read_bytes(), int(asked[1]), int(asked[2])
            found = data[first : last + 1]
            span = f"bytes {first}-{first + len(found) - 1}/{len(data)}"
            self.answer(206 if found else 416, found, Content_Range=span if found else f"bytes */{len(data)}")
        else:
            self.answer(200, path.read_bytes())


@dataclass(frozen=True)
class Side:
    """The code of one side, and where it runs.

    Attributes:
        tree: Its checkout.
        sources: The sources, which are the current folder of every command.
        scratch: The folder of OUT. It is the same for both sides, because messages have its name.
        url: The web server of the sources.
    """

    tree: Path
    sources: Path
    scratch: Path
    url: str

    def run(self, name: str, commands: str, results: Path) -> None:
        """Run the commands of a case, and move OUT and a transcript to the folder `name` of `results`."""
        home = self.scratch / name
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        steps = [self._run_step(shlex.split(step), home / "OUT") for step in commands.split(";")]
        transcript = "".join(steps).replace(f"{home}/", "").replace(self.url, "URL").replace(f"{self.tree}/src/", "")
        (home / "transcript").write_text(transcript, errors="surrogateescape")
        results.mkdir(exist_ok=True)
        shutil.rmtree(results / name, ignore_errors=True)
        home.rename(results / name)

    def _run_step(self, words: list[str], out: Path) -> str:
        """Run one command; return the command, its exit code and its messages."""
        words = [str(out) if word == "OUT" else word.replace("URL", self.url) for word in words]
        if words[0] == "copy":
            shutil.copytree(self.sources / words[1], words[2])
            return ""
        kill = words[0] == "kill"
        command, *others = words[kill:]
        defaults = DEFAULTS.get(command, ())
        missing = [pair for pair in zip(defaults[::2], defaults[1::2], strict=True) if pair[0] not in others]
        flags = [*chain.from_iterable(missing), "--quiet"]
        at = 1 if command in ("build", "plan") else 0  # after the kind
        arguments = [command, *others[:at], *flags, *others[at:]]
        path = f"{self.tree / 'src'}:{self.sources}"
        with subprocess.Popen(
            [sys.executable, "-m", "decodeonce.cli", *arguments],
            cwd=self.sources,
            env={"PATH": os.environ["PATH"], "HOME": str(self.scratch), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            while kill and process.poll() is None and _blocks_done(out) < BLOCKS_BEFORE_KILL:
                time.sleep(0.002)
            if kill and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            printed = process.communicate()[0].decode(errors="surrogateescape")
        return f"prep {shlex.join(words[kill:])}\n{printed}exit {process.returncode}\n"


def _blocks_done(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.rglob("*.log"))


def differences(expected: Path, found: Path) -> list[str]:
    """Return what differs between the files below two folders. Of an unfinished build, only its presence counts."""
    old, new = map(_files, (expected, found))
    names = [f"{name}: missing" for name in sorted({*old} - {*new})] + [f"{name}: new" for name in {*new} - {*old}]
    changed = [name for name in old if name in new and old[name] != new[name]]
    return names + [line for name in changed for line in _changes(name, old[name], new[name])]


def _files(top: Path) -> dict[str, bytes]:
    files = tree_bytes(top)
    private = {name.partition(".build/")[0] + ".build/": b"" for name in files if ".build/" in name}
    return private | {name: data for name, data in files.items() if ".build/" not in name}


def _changes(name: str, old: bytes, new: bytes) -> Iterator[str]:
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    yield f"{name}: {len(old)} and {len(new)} bytes, which differ from byte {at} on"
    if name.endswith("store.json"):
        before, after = (dict(_leaves(json.loads(data))) for data in (old, new))
        keys = [key for key in before | after if before.get(key) != after.get(key)]
        yield from (f"  {key}: {before.get(key, 'missing')} -> {after.get(key, 'missing')}"[:200] for key in keys)
        if not keys:
            yield "  the same keys and values, in another order or form"
    elif name.endswith((".tsv", "transcript")):
        lines = [data.decode(errors="replace").split("\n") for data in (old, new)]
        for sign, these, others in (("-", *lines), ("+", *reversed(lines))):
            yield from [f"  {sign} {line}"[:200] for line in these if line not in others][:MOST_LINES]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(value)


def outcome(name: str, old: Path, new: Path) -> list[str]:
    """Return what differs between two results of a case, or that the commands did not end as its name says."""
    codes = re.findall(r"^exit (-?\d+)$", (new / name / "transcript").read_text(errors="replace"), re.MULTILINE)
    steps = [step.split()[0] for step in CASES[name].split(";") if "copy " not in step]
    wanted = [str(-signal.SIGKILL) if step == "kill" else "0" for step in steps]
    if name.startswith(REFUSED):
        wanted[-1] = codes[-1] if codes[-1] != "0" else "an error"
    ended = [] if codes == wanted else [f"exit codes: {' '.join(codes)}, expected {' '.join(wanted)}"]
    return ended + differences(old / name, new / name)


def prepare(side: Side) -> None:
    """Write the sources, and build the stores that cases start from, unless they are there from a run of this file."""
    home = side.sources.parent
    stamp = xxhash.xxh3_64_hexdigest(Path(__file__).read_bytes() + (ROOT / "tests/images.py").read_bytes())
    if (home / "stamp").exists() and (home / "stamp").read_text() == stamp:
        return
    for folder in (side.sources, home / "results"):
        shutil.rmtree(folder, ignore_errors=True)
    write_sources(side.sources)
    (side.sources / "stores").mkdir()
    for name, command in STORES.items():
        side.run(name, command, side.scratch / "built")
        built = side.scratch / "built" / name
        if not (built / "OUT/store.json").exists():
            sys.exit(f"the commit cannot build the store {name}:\n{(built / 'transcript').read_text()}")
        store = (built / "OUT").rename(side.sources / "stores" / name)
        damaged = shutil.copytree(store, side.sources / "damaged" / name)
        for path in (*damaged.glob("images-00000.*"), damaged / "labels.npy"):
            with path.open("r+b") as file:
                file.seek(path.stat().st_size * 7 // 8)
                file.write(b"damage")
    (home / "stamp").write_text(stamp)


def compare(old: Path, new: Path, folder: Path, names: Sequence[str] = ()) -> int:
    """Run the cases with the trees `old` and `new`, and print what differs; return the number of different cases.

    `folder` keeps the results of `old`.
    """
    unknown = sorted({*names} - {*CASES})
    if unknown:
        sys.exit(f"unknown cases: {' '.join(unknown)}; expected some of: {' '.join(CASES)}")
    Files.root, different = folder / "sources", 0
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Files)) as url, ThreadPoolExecutor(AT_ONCE) as pool:
        sides = [Side(tree, folder / "sources", folder / "scratch", url) for tree in (old, new)]
        prepare(sides[0])
        chosen = names or [*CASES]
        for name, found in zip(chosen, pool.map(partial(_compare_case, sides, folder), chosen), strict=True):
            print(f"{name}: {'different' if found else 'same'}", *found, sep="\n  ", flush=True)
            different += bool(found)
    print(f"{len(chosen)} cases: {len(chosen) - different} same, {different} different")
    return different


def _compare_case(sides: list[Side], folder: Path, name: str) -> list[str]:
    if not (folder / "results" / name).exists():
        sides[0].run(name, CASES[name], folder / "results")
    sides[1].run(name, CASES[name], folder / "new")
    return outcome(name, folder / "results", folder / "new")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tests.oracle COMMIT [CASE ...]")
    commit = _git("rev-parse", "--short=12", f"{sys.argv[1]}^{{commit}}").decode().strip()
    folder = ROOT / "build/oracle" / commit
    if not (folder / "tree").exists():
        (folder / "tree").mkdir(parents=True)
        subprocess.run(["tar", "-x", "-C", folder / "tree"], input=_git("archive", commit, "src"), check=True)
    return 1 if compare(folder / "tree", ROOT, folder, sys.argv[2:]) else 0


if __name__ == "__main__":
    sys.exit(main())
