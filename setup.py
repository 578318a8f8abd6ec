"""What pyproject.toml cannot say: README.md for a package index, where its links to other files lead nowhere."""

import re
from pathlib import Path

from setuptools import setup

LINK = re.compile(r"!?\[([^]]+)\]\((?!https?:)([^)#]+)[^)]*\)")


def told(link: re.Match[str]) -> str:
    """A link to a file of the sources, or a picture, as words."""
    text, path = link.groups()
    return text if path == text else f"{text} (`{path}`)"


readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(long_description=LINK.sub(told, readme), long_description_content_type="text/markdown")
