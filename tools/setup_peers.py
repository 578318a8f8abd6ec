"""Make `build/peers-venv`: this project, as training has it, and the loaders that bench/peers.py compares it with.

A peer that does not install is reported in a line and left out; a later run tries it again.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from pathlib import Path

from tools.setup_env import ROOT, SetupError, pip, run, say

VENV = ROOT / "build" / "peers-venv"
STAMP = VENV / "setup.txt"
PEERS = ROOT / "bench" / "peers.txt"
INPUTS = (ROOT / "pyproject.toml", ROOT / "constraints.txt", PEERS, Path(__file__).resolve())
DEBIAN = ("g++", "pkg-config", "python3-dev", "libopencv-dev", "libturbojpeg0-dev")  # what compiling FFCV needs


def read_peers() -> dict[str, list[str]]:
    """Of each peer its requirements: a paragraph of bench/peers.txt, the peer's own line first."""
    paragraphs = [
        [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        for paragraph in PEERS.read_text().split("\n\n")
    ]
    return {lines[0]: lines for lines in paragraphs if lines}


def make_venv() -> None:
    """A new environment, with this project and without [prep]."""
    say(f"making {VENV.relative_to(ROOT)}; it takes a minute or two, most of it for torch")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    run(sys.executable, "-m", "venv", VENV, venv=VENV)
    pip("install", "-e", ".", venv=VENV)


def install_peers() -> list[str]:
    """Install each peer by itself; returns those that could not be."""
    failed = []
    for peer, requirements in read_peers().items():
        try:
            # Exact as they are, and some of another release than the project's own tools have.
            pip("install", "--no-deps", *requirements, venv=VENV, PIP_CONSTRAINT="")
            say(f"{peer}: installed")
        except SetupError as error:
            cure = f"; it needs Debian's {' '.join(DEBIAN)}, see --apt" if peer.startswith("ffcv") else ""
            say(f"{peer}: left out: {error}{cure}")
            failed.append(peer)
    return failed


def main() -> int:
    """Bring the environment up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apt", action="store_true", help="install what FFCV needs with apt-get; needs root")
    apt = parser.parse_args().apt
    inputs = hashlib.sha256(b"".join([str(ROOT).encode(), *(path.read_bytes() for path in INPUTS)])).hexdigest()
    last, *failed = STAMP.read_text().splitlines() if STAMP.exists() else [""]
    try:
        if last != inputs:
            make_venv()
        elif not failed:
            return 0
        if apt:
            say(f"apt-get install {' '.join(DEBIAN)}")
            run("apt-get", "update", "-q", venv=VENV)
            packages = ("-qy", "--no-install-recommends", *DEBIAN)
            run("apt-get", "install", *packages, venv=VENV, DEBIAN_FRONTEND="noninteractive")
    except SetupError as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    STAMP.write_text("\n".join([inputs, *install_peers()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
