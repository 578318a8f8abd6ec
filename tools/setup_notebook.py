"""Make `build/notebook-venv`: Jupyter, matplotlib and the stock Pillow that it brings, beside what `.venv` has.

torch is large, and no PIL may lie over another: so all of .venv but its PIL is linked in, behind what is installed.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

from tools.setup_env import ROOT, pip, remake, run, say
from tools.setup_env import VENV as SHARED_VENV

VENV = ROOT / "build" / "notebook-venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.txt"
PINS = (ROOT / "constraints.txt", ROOT / "constraints-notebook.txt")
INPUTS = (*PINS, Path(__file__).resolve())
PACKAGES = ("ipykernel", "jupytext", "matplotlib", "nbclient", "pillow")
NOT_SHARED = ("PIL", "pillow", "pip", "__", "_distutils", "distutils")


def make_venv() -> None:
    """A new environment, with what a notebook needs and .venv has not."""
    say(f"making {VENV.relative_to(ROOT)}; it takes half a minute")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    run(sys.executable, "-m", "venv", VENV, venv=VENV)
    pip("install", *PACKAGES, venv=VENV, PIP_CONSTRAINT=" ".join(map(str, PINS)))


def share() -> None:
    """Links to what is in .venv now, and a .pth file, which Python reads after its own packages' folder."""
    links, [own] = VENV / "shared", VENV.glob("lib/python3*/site-packages")
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for path in sorted(Path(sysconfig.get_paths(vars={"base": str(SHARED_VENV)})["purelib"]).iterdir()):
        if not path.name.startswith(NOT_SHARED) and path.suffix != ".pth":
            (links / path.name).symlink_to(path)
    (own / "shared.pth").write_text(f"{links}\n{ROOT / 'src'}\n")


def main() -> int:
    """Bring the environment up to date."""
    failed = remake(make_venv, stamp=STAMP, inputs=INPUTS)
    if not failed:
        share()
    return failed


if __name__ == "__main__":
    sys.exit(main())
