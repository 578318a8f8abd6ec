"""Write the images of a store as files: `python examples/export.py STORE DEST [--quality 95]`.

Row 7 becomes DEST/<class>/00000007.png. If the store has masks, the class folders are in DEST/images and, for example,
in DEST/mask. DEST/classes.txt lists the classes in label order.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":  # before the imports: Ctrl-C ends this without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image
from tqdm import tqdm

from decodeonce import DecodeonceError, Store, open_store

AT_ONCE = 1000  # images that wait for a thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("dest", type=Path, help="folder to create")
    parser.add_argument("--quality", type=int, help="write JPEGs of this quality (default: PNG, without loss)")
    options = parser.parse_args()
    try:
        export(open_store(options.store), options.dest, options.quality)
    except (DecodeonceError, OSError) as error:
        sys.exit(f"export: error: {error}")


def export(store: Store, dest: Path, quality: int | None = None) -> None:
    """Write the images of a store. Until all are written, the folder is called DEST.tmp."""
    if dest.exists():
        raise DecodeonceError(f"{dest}: already exists; choose another DEST")
    names = [cls.name for cls in store.classes]
    if bad := [name for name in names if not name or name.startswith(".") or "/" in name or not name.isprintable()]:
        raise DecodeonceError(f"class {bad[0]!r} cannot be the name of a folder")
    unfinished = dest.with_name(f"{dest.name}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    tops = {name: unfinished / (name if store.paired else "") for name in ("images", *store.paired)}
    for top in tops.values():
        for name in names:
            (top / name).mkdir(parents=True)
    (unfinished / "classes.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")

    def write(row: int) -> None:
        for part, images in {"images": store.images, **store.paired}.items():
            pixels, name = images[row], tops[part] / names[store.labels[row]] / f"{row:08d}"
            if quality is None or pixels.ndim == 2:  # a mask keeps its values
                Image.fromarray(pixels).save(f"{name}.png", compress_level=1)
            else:
                Image.fromarray(pixels).save(f"{name}.jpg", quality=quality)

    with ThreadPoolExecutor() as threads, tqdm(total=len(store), unit=" images", disable=None) as bar:
        for first in range(0, len(store), AT_ONCE):
            for _ in threads.map(write, range(first, min(first + AT_ONCE, len(store)))):
                bar.update()
    unfinished.rename(dest)


if __name__ == "__main__":
    main()
