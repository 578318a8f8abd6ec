"""Make the pictures of docs/images that show commands: `python -m tools.pictures`.

It runs the real commands on generated images, in a temporary folder: a build is killed and resumed in a terminal, whose
lines become terminal.svg. `prep show` draws sheet.jpg, and Chromium draws report.jpg, the beginning of the page that
`prep report` writes. forms.jpg shows the places where images of bc4 differ most from their RGB rows.
fit.jpg shows what --fit does to a photo.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageDraw

from bench.pixels import as_jpeg
from decodeonce import open_store
from examples.sample import write_sample_tree
from tools.svg import document, label

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COLUMNS, LINE, CHARACTER, MARGIN = 72, 20, 8.45, 16  # a line's height and a character's width, in pixels
BUILD = "prep build folder imagenet/train train.store"  # as in the tutorial
WORST, PLACE, ENLARGED, GAP = 6, 160, 4, 8  # places of forms.jpg, and their size in pixels
RANDOM_CROP = (40, 70, 130, 150)  # top, left, height and width in a row of 256x256: 30% of its area
DONE = re.compile(rb"(\d+)%\|")  # of a progress bar
# A line is dim until its delay has passed. Where animations are not supported or not wanted, no line is dim.
MOVES = """
.back { fill: #161b22 } .text { fill: #e6edf3 } .ours { fill: #ff7a3d }
.mono { font-size: 14px } .prompt { font-weight: 700 }
@keyframes appear { from { opacity: 0.25 } to { opacity: 1 } }
.line { animation: appear 0.01s linear backwards }
@media (prefers-reduced-motion: reduce) { .line { animation: none } }
"""


class Terminal:
    """The lines that commands print on a terminal, each with the seconds after which it appears."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines, self.seconds = folder, list[tuple[float, str, str]](), 0.5

    def run(self, command: str, kill_at: int = 101) -> None:
        """Run a command on a terminal, and send SIGKILL when its progress bar is at `kill_at` percent."""
        self.add(f"$ {command}", "ours prompt", 1.0)
        words = [sys.executable, "-m", "decodeonce.cli", *shlex.split(command)[1:]]
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        start, output = time.monotonic(), b""
        with subprocess.Popen(
            words, cwd=self.folder, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        ) as process:
            os.close(inner)
            while chunk := read(outer):
                output += chunk
                done = DONE.findall(output)
                if done and kill_at <= int(done[-1]) < 100:
                    os.killpg(process.pid, signal.SIGKILL)
        os.close(outer)
        self.seconds += min(time.monotonic() - start, 2)
        for line in screen(output.decode()):
            for first in range(0, max(len(line), 1), COLUMNS):
                self.add(line[first : first + COLUMNS], "text", 0.15)
        if process.returncode:
            self.add(signal.strsignal(-process.returncode) or "", "text", 0.15)  # a shell prints this word, too
        self.add("", "text", 0.5)

    def add(self, line: str, classes: str, seconds: float) -> None:
        """Add a line, and wait for some seconds."""
        self.lines.append((self.seconds, line, classes))
        self.seconds += seconds

    def svg(self, title: str) -> str:
        """Return the lines as an animated SVG document."""
        body = []
        for number, (seconds, line, classes) in enumerate(self.lines):
            delay, y = f"animation-delay: {seconds:.1f}s", MARGIN + LINE * number + 14
            body.append(label(MARGIN, y, line, f"mono line {classes}", style=delay))
        width, height = round(COLUMNS * CHARACTER) + 2 * MARGIN, len(self.lines) * LINE + MARGIN
        return document(width, height, title, body, MOVES)


def read(terminal: int) -> bytes:
    """Read from a terminal; b"" if all processes have closed it."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO
        return b""


def screen(output: str) -> list[str]:
    """Return the lines that are visible after this output: a carriage return lets later text overwrite a line."""
    lines = []
    for printed in re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", output).replace("\r\n", "\n").rstrip("\n").split("\n"):
        line = ""
        for text in printed.split("\r"):
            line = text + line[len(text) :]
        lines.append(line.rstrip())
    return lines


def record(folder: Path) -> None:
    """Record a build that is killed and resumed, and a look at the store."""
    terminal = Terminal(folder)
    terminal.run(BUILD, kill_at=40)
    terminal.run(BUILD)
    terminal.run("prep verify train.store")
    terminal.run("prep show train.store --random 24")
    (IMAGES / "terminal.svg").write_text(terminal.svg("A build is killed, resumed and verified"))


def worst_places(folder: Path) -> Image.Image:
    """Draw the six images that bc4 changes most, each where it does: the RGB rows, and below them each other form."""
    stores = {"RGB": open_store(folder / "train.store").images}
    for pixels in ("yuv420", "bc4"):
        command = ["convert", "train.store", f"{pixels}.store", "--pixels", pixels]
        subprocess.run([sys.executable, "-m", "decodeonce.cli", *command], check=True, cwd=folder)
        stores[pixels] = open_store(folder / f"{pixels}.store").images
    errors = [np.square(rgb.astype(float) - bc4).mean() for rgb, bc4 in zip(stores["RGB"], stores["bc4"], strict=True)]
    lines = [*stores, "JPEG 90"]
    drawn = Image.new("RGB", (WORST * (PLACE + GAP) - GAP, len(lines) * (PLACE + GAP) - GAP), "white")
    for column, row in enumerate(np.argsort(errors)[: -WORST - 1 : -1].tolist()):
        images = [store[row] for store in stores.values()]
        images.append(as_jpeg(images[0]))
        error = np.square(images[0].astype(float) - images[2]).mean(axis=2)
        side = PLACE // ENLARGED
        sums = np.lib.stride_tricks.sliding_window_view(error, (side, side))[::8, ::8].sum(axis=(2, 3))
        top, left = (8 * int(at) for at in np.unravel_index(sums.argmax(), sums.shape))
        for line, image in enumerate(images):
            place = Image.fromarray(image[top : top + side, left : left + side])
            place = place.resize((PLACE, PLACE), Image.Resampling.NEAREST)
            drawn.paste(place, (column * (PLACE + GAP), line * (PLACE + GAP)))
    draw = ImageDraw.Draw(drawn)
    for line, text in enumerate(lines):
        draw.rectangle((0, line * (PLACE + GAP), 66, line * (PLACE + GAP) + 20), "white")
        draw.text((4, line * (PLACE + GAP) + 2), text, "black", font_size=15)
    return drawn


def fits(folder: Path) -> Image.Image:
    """Draw a photo of 4:3 and its rows with each --fit, each with the same random crop and its share of the row."""
    photo = next(path for path in sorted(folder.glob("imagenet/train/*/*")) if Image.open(path).size == (500, 375))
    (folder / "one" / "class").mkdir(parents=True)
    shutil.copy(photo, folder / "one" / "class")
    panels = [
        (
            f"a photo, {' x '.join(map(str, Image.open(photo).size))}",
            Image.open(photo).convert("RGB").resize((341, 256)),
        )
    ]
    for fit in ("crop", "stretch", "pad"):
        words = ["build", "folder", "one", f"{fit}.store", "--fit", fit]
        subprocess.run([sys.executable, "-m", "decodeonce.cli", *words], check=True, cwd=folder)
        panels.append((f"--fit {fit}", Image.fromarray(open_store(folder / f"{fit}.store").images[0])))
    drawn = Image.new("RGB", (sum(image.width + 12 for _, image in panels) - 12, 256 + 26), "white")
    draw, left = ImageDraw.Draw(drawn), 0
    for number, (text, image) in enumerate(panels):
        draw.text((left, 3), text, "black", font_size=16)
        drawn.paste(image, (left, 26))
        if number:
            top, start, height, width = RANDOM_CROP
            draw.rectangle(
                (left + start, 26 + top, left + start + width, 26 + top + height), outline="#ff7a3d", width=4
            )
        left += image.width + 12
    return drawn


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        prep = [sys.executable, "-m", "decodeonce.cli"]
        write_sample_tree(folder / "imagenet", count=1200)
        record(folder)
        subprocess.run([*prep, "report", "train.store"], check=True, cwd=folder)
        browser = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,760"]
        subprocess.run([*browser, "--screenshot=report.png", (folder / "report.html").as_uri()], check=True, cwd=folder)
        fits(folder).save(IMAGES / "fit.jpg", quality=85)
        worst_places(folder).save(IMAGES / "forms.jpg", quality=90, subsampling=0)
        for picture in ("sheet", "report"):
            Image.open(folder / f"{picture}.png").convert("RGB").save(IMAGES / f"{picture}.jpg", quality=80)


if __name__ == "__main__":
    main()
