"""Say in one sentence why decodeonce does not run with this Python or system. Any Python since 3.6 can run this."""

import platform
import re
import sys
from pathlib import Path


def reason(project: str, python: str, system: str) -> str:
    """Return why this Python or system is unsupported, "" if it is not; `project` is the text of pyproject.toml."""
    if system != "Linux":
        return (
            f"decodeonce runs on Linux only, and this is {system}. Use a Linux machine, virtual machine or container."
        )
    found = re.search(r'^requires-python = ">=3\.(\d+)(?:,<3\.(\d+))?"', project, re.MULTILINE)
    assert found, "pyproject.toml declares no range that this can read"
    first, end = int(found[1]), int(found[2] or 99)
    if [3, first] <= [int(part) for part in python.split(".")[:2]] < [3, end]:
        return ""
    declared = f"3.{first} to 3.{end - 1}" if found[2] else f"3.{first} or newer"
    return f"decodeonce needs Python {declared}, and this is {python}. Run: make PYTHON=python3.{first + 1} ..."


def main() -> int:
    """Print the reason, if there is one, and return the exit code."""
    project = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
    why = reason(project, platform.python_version(), platform.system())
    if why:
        sys.stderr.write(f"setup: error: {why}\n")
    return bool(why)


if __name__ == "__main__":
    sys.exit(main())
