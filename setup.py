"""The part of the metadata that pyproject.toml cannot express: README.md without images and links to other files.

A package index shows README.md alone, so relative links would be broken there.
"""

import re
import sys
from pathlib import Path

from setuptools import setup

IMAGE = re.compile(r"!\[[^]]*\]\((?!https?:)[^)]+\)[ \n]?")
LINK = re.compile(r"\[([^]]+)\]\((?!https?:)([^)#]+)[^)]*\)")


def link_as_text(link: re.Match[str]) -> str:
    """Turn a link to a file of the sources into text."""
    text, path = link.groups()
    return text if path == text else f"{text} (`{path}`)"


# Older releases of pip, such as 23.0, download torch before they check requires-python.
if not (3, 11) <= sys.version_info < (3, 15):
    sys.exit(f"decodeonce needs Python 3.11 to 3.14, and this is {sys.version.split()[0]}")
readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
setup(long_description=LINK.sub(link_as_text, IMAGE.sub("", readme)), long_description_content_type="text/markdown")
