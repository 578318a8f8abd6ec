"""Commands of two nodes at the same time, and their builds."""

import subprocess
from pathlib import Path

from tests.cluster.builds import PREP

# A row has 1.1 MB and is a block of its own; a shard has two rows.
FLAGS = ("--size", "384x1024", "--shard-size", str(2 * 384 * 1024 * 3), "--max-bad", "2", "--workers", "1")


def build(tree: Path, out: Path, container: str = "npy") -> list[str]:
    """Return the words after `prep` of a build."""
    return ["build", "folder", str(tree), str(out), "--format", container, *FLAGS]


def start(words: list[str]) -> subprocess.Popen[str]:
    """Start `prep`; its standard error goes to its standard output."""
    return subprocess.Popen([*PREP, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(*processes: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """Wait until processes have ended; return their exit codes and outputs."""
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def run(*commands: list[str]) -> list[tuple[int, str]]:
    """Run commands at the same time; return their exit codes and outputs."""
    return ended(*map(start, commands))


def has_block(out: Path) -> bool:
    """Return whether a block of a build is done."""
    return any(path.stat().st_size for path in (out / ".build" / "journals").glob("*.log"))
