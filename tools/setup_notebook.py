"""Create `build/notebook-venv`, with Jupyter, matplotlib, stock Pillow and the packages of `.venv`.

The packages of .venv are linked instead of installed, because torch is large. Its PIL is left out, because installing a
second PIL overwrites the first. Packages of the new environment take precedence over the linked ones.
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
PACKAGES = ("ipykernel", "matplotlib", "nbclient", "pillow")
NOT_SHARED = ("PIL", "pillow", "pip", "__", "_distutils", "distutils")


def make_venv() -> None:
    """Create the environment, with the packages that a notebook needs and .venv lacks."""
    say(f"creating {VENV.relative_to(ROOT)}; it takes half a minute")
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    run(sys.executable, "-m", "venv", VENV)
    pip("install", *PACKAGES, venv=VENV, PIP_CONSTRAINT=" ".join(map(str, PINS)))


def link_shared_packages() -> None:
    """Link the packages that are in .venv now, and add the links' folder to the import path with a .pth file.

    Python searches the folders of .pth files after site-packages.
    """
    links, [own] = VENV / "shared", VENV.glob("lib/python3*/site-packages")
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for path in sorted(Path(sysconfig.get_paths(vars={"base": str(SHARED_VENV)})["purelib"]).iterdir()):
        if not path.name.startswith(NOT_SHARED) and path.suffix != ".pth":
            (links / path.name).symlink_to(path)
    (own / "shared.pth").write_text(f"{links}\n{ROOT / 'src'}\n")


def main() -> int:
    """Run the command."""
    failed = remake(make_venv, stamp=STAMP, inputs=INPUTS)
    if not failed:
        link_shared_packages()
    return failed


if __name__ == "__main__":
    sys.exit(main())
