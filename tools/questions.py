"""Count the words that a reader passes until a question is answered: `python -m tools.questions`.

Each line of questions.tsv is a question and the way to its answer: fields `PAGE: TEXT`, separated by tabs. On every
page but the last, TEXT is the link that the reader follows. On the last, it is the beginning of the answer. The words
of a page are counted from its top up to TEXT. Add a line for a question that took you long.
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tools" / "questions.tsv"
MOST_WORDS, MOST_PAGES, MOST_ON_AVERAGE = 500, 2, 400


class Question(NamedTuple):
    """A question, and the (page, text) on the way to its answer."""

    text: str
    way: list[tuple[str, str]]

    def words(self) -> int:
        """Return the number of words from the top of each page up to its text; ValueError if a page lacks it."""
        return sum(words_before(page, text) for page, text in self.way)


def read_questions() -> list[Question]:
    """Return the questions of the file."""
    lines = [line.split("\t") for line in FILE.read_text().splitlines()]
    return [
        Question(text, [(page, words) for page, _, words in (one.partition(": ") for one in way)])
        for text, *way in lines
    ]


def words_before(page: str, text: str) -> int:
    """Return the number of words that a reader sees on a page before a text of its source."""
    before, found, _ = (ROOT / page).read_text().partition(text)
    if not found:
        raise ValueError(f"{page} does not contain {text!r}, the way of a question in {FILE.name}")
    shown = re.sub(r"!\[[^\]]*\]\([^)]*\)|<!--.*?-->|^\|[-| ]+\|$", "", before, flags=re.DOTALL | re.MULTILINE)
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", shown)
    return sum(1 for word in shown.split() if re.search(r"\w", word))


def main() -> None:
    """Print a row for each question, and the mean."""
    found = read_questions()
    print("| question | pages | words |\n|---|---|---|")
    for one in found:
        print(f"| {one.text} | {len(one.way)} | {one.words():,} |")
    pages, words = statistics.mean(len(one.way) for one in found), statistics.mean(one.words() for one in found)
    print(f"| mean | {pages:.1f} | {words:,.0f} |")


if __name__ == "__main__":
    main()
