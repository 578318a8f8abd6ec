"""Words and phrases that are not used in the documentation, the help texts and the messages of the package.

Each rule says what to write instead. `python -m tests.docs.test_words` prints all that the rules find.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT, WRITTEN, name_of, prose
from tools import command_reference

SRC = ROOT / "src"
TEMPLATES = SRC / "decodeonce" / "cli" / "report" / "templates"
INLINE_CODE = re.compile(r"(`+).+?\1")
BLOCK_START = re.compile(r"\s*([|#>]|[-*] |\d+\. )")  # a row of a table, a heading, a quote or an item of a list


class Rule(NamedTuple):
    """A regular expression of words to avoid, what to write instead, and a text that it must find."""

    pattern: str
    instead: str
    example: str


RULES = [
    # Words that are archaic or were used instead of the usual technical term.
    Rule("mend(s|ed|ing)?", "repair", "mends damaged rows"),
    Rule("anew", "again, or a new one", "made anew"),
    Rule("whoever", "anyone who, or name the user", "whoever builds"),
    Rule("besides?", "next to, compared with, or in addition", "beside other jobs"),
    Rule("told|tells", "printed, reported, said", "as the log tells"),
    Rule("(some|no|any|every)body('s)?", "name the user or process; or rewrite with 'you'", "nobody says which"),
    Rule("pictures?", "image", "60 pictures"),
    Rule("odd(ly|ity|ities)?(?! (number|width|height|side|address|or even|and even))", "unusual", "62 oddities"),
    Rule("crews?", "workers", "the crew ends"),
    Rule("ring", "slots, or buffer", "the Loader's ring"),
    Rule("cures?", "fix, or say what to run", "the error names its cure"),
    Rule("(un)?disturbed", "uninterrupted", "an undisturbed build"),
    Rule("afar|at hand", "remote; available", "from afar"),
    Rule("whence|thereof|therein|hitherto|henceforth|lest|ought", "a current word", "lest it fail"),
    Rule("for ever", "forever, or without a limit", "waits for ever"),
    Rule("drawn (images|rows|trees?|stores?)", "generated, or random", "a drawn tree"),
    # Idioms.
    Rule("(go|goes|going|gone|went) on(?! (the|a|an)\\b)", "resume, or continue", "the build goes on"),
    Rule("(become|becomes|became) of", "what happens to", "what becomes of it"),
    Rule("all the same", "still, or anyway", "it is kept all the same"),
    Rule("by (itself|themselves)", "automatically, alone, or separately", "it resumes by itself"),
    Rule("for nothing", "at no cost, or without a copy", "channels_last, for nothing"),
    Rule("(can|to) be had", "available", "the best to be had"),
    Rule("(come|comes|came) to (its|their|an) end", "end, or finish", "the job comes to its end"),
    Rule("(?<!run )(make|makes|making|made) again", "rebuild", "damaged rows are made again"),
    Rule("in the place of", "instead of", "a link in the place of a file"),
    Rule("of (ours|yours|theirs)", "our, your, their", "nothing of ours"),
    Rule("(is|are|was|were) said", "is reported", "too little space is said before decoding"),
    Rule("hand(s|ed|ing)? (on|over|out)", "pass, return, or assign", "a build hands on its store"),
    Rule("counted in(?=[,.;:)]|$)", "included", "1 GB, the page cache counted in"),
    Rule(
        "(stand|stands|stood|standing) (in|on|at|before|behind|between|above|below|under|there)",
        "be in, come before, or replace",
        "a path that stands in it twice",
    ),
    Rule(
        "(lie|lies|lay|lying|lain) (in|at|on|over|under|below|above|behind|outside|with|there)",
        "be in, be on",
        "the files lie in a folder",
    ),
    # Grammar.
    Rule("may not", "must not (forbidden), or might not (possible)", "it may not be read"),
    Rule("(all|none|nothing|anything|everything) but", "all except, or only", "all but one"),
    Rule("but for", "except for", "the defaults but for one"),
    Rule("(?<!there )is no (?!longer|more|better|worse|other)\\w+", "is not a", "a file that is no image"),
    Rule("(?<!there )(is|are) none", "is not one, or has none", "as a bound it is none"),
    Rule("of which there (is|are)", "a clause with 'that has'", "of which there is none"),
    Rule("where there (is|are|was|were) (no|none|not)", "if there is no", "where there is no compiler"),
    Rule("as many (\\w+ ){0,4}as there are", "one per", "as many workers as there are cores"),
    Rule("as (\\w+ ){1,2}(has|have) (it|them)", "like", "as the table has it"),
    Rule("so (many|often|long)(?! (that|as))", "that many, this long, or the number", "after so many steps"),
    Rule("whatever (it|they|that|this) (is|are|was|were)", "any", "a name, whatever it is"),
    Rule("for whom?(ever)?", "for users who", "for who has a GPU"),
    Rule("[,;] (or )?else", "otherwise", "all is well; else it fails"),
    Rule(
        ", for (it|they|there|this|that|nothing) (is|are|has|have|was|were|can|will)",
        "because",
        "fast, for it is local",
    ),
    Rule(
        "(images|rows|bytes|samples|files|lines|[KMGT]B) an? "
        "(second|core|image|row|sample|class|epoch|step|batch|worker|process|rank|node|task|file|day)",
        "per, as in images/s",
        "1,200 images a second",
    ),
    Rule("(?-i:Of) [a-z`]\\w*", "start the sentence with its subject", "Of two rows, one is kept"),
]
# Patterns match whole words, in text whose runs of whitespace are single spaces.
MATCHERS = [re.compile(rf"(?:(?<![\w-])|(?=[,;]))(?:{rule.pattern})(?!\w)", re.IGNORECASE) for rule in RULES]


class Finding(NamedTuple):
    """Words to avoid, with their place and line."""

    place: str
    line: int
    words: str
    instead: str

    def __str__(self) -> str:
        where = f"{self.place}:{self.line}" if self.line else self.place
        return f"{where}: {self.words!r}: write: {self.instead}"


def findings(text: str, place: str = "", line: int = 0) -> Iterator[Finding]:
    """Apply all rules to a paragraph, except to its inline code."""
    text = " ".join(INLINE_CODE.sub("`code`", text.replace("\n", " ")).split())
    for rule, matcher in zip(RULES, MATCHERS, strict=True):
        for found in matcher.finditer(text):
            yield Finding(place, line, found[0], rule.instead)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each paragraph, heading, list item and table row."""
    first, lines = 1, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if lines and (not line.strip() or BLOCK_START.match(line)):
            yield first, "\n".join(lines)
            lines = []
        if line.strip():
            first = first if lines else number
            lines.append(line)


def in_prose(text: str, place: str) -> Iterator[Finding]:
    """Check the paragraphs of a page that has no fences."""
    for line, paragraph in paragraphs(text):
        yield from findings(paragraph, place, line)


def in_messages(source: str, place: str) -> Iterator[Finding]:
    """Check the strings of a Python module that can be messages: those with a space, except docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            text = node.value
        else:
            continue
        if " " in text.strip():
            yield from findings(text, place, node.lineno)


def in_help() -> Iterator[Finding]:
    """Check the help of every command, argument and flag."""
    for path, command in command_reference.commands():
        texts = [command.help or "", *(getattr(param, "help", None) or "" for param in command.params)]
        for text in texts:
            yield from findings(text, f"{path} --help")


@lru_cache
def all_findings() -> tuple[Finding, ...]:
    """Check all pages, help texts, messages and templates of reports."""
    found = [*in_help()]
    for page in WRITTEN:
        found += in_prose(prose(page), name_of(page))
    for path in sorted(SRC.rglob("*.py")):
        found += in_messages(path.read_text(encoding="utf-8"), name_of(path))
    for path in sorted(TEMPLATES.rglob("*.html")):
        found += findings(re.sub(r"<[^>]*>|{[{%#].*?[}%#]}", " ", path.read_text(encoding="utf-8")), name_of(path))
    return tuple(found)


def test_no_words_to_avoid_are_used() -> None:
    assert not all_findings(), "\n".join(map(str, all_findings()))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example)
def test_rule_finds_its_example(rule: Rule) -> None:
    assert rule.instead in [finding.instead for finding in findings(rule.example)]


@pytest.mark.parametrize(
    "text",
    [
        "An odd number of rows; 3 or more, if there is no limit. It is no longer exempt.",
        "The build resumes automatically, unless another one runs. It takes as long as the first one.",
        "Pass `--on-odd told`, ``picture`` or `anew`; the flags --picture-size and --told are not words.",
        "1,200 images/s per core, for images of 110 KB. Write `for x in y: a if b else c`.",
        "Offset 0 is that of the first row. Offsets of it follow. The part goes on the device.",
        "Lay out the page, so that nothing overlaps. There is no limit for images in memory.",
    ],
)
def test_plain_text_is_clean(text: str) -> None:
    assert not [str(finding) for finding in findings(text)]


def test_lines_of_pages_are_reported() -> None:
    page = "# Odd\n\nThe build goes\non, `told` apart.\n- one\n- is anew\n\n| a | b |\n| - | told |\n"
    found = [(finding.line, finding.words) for finding in in_prose(page, "page.md")]
    assert found == [(1, "Odd"), (3, "goes on"), (6, "anew"), (9, "told")]
    assert str(next(in_prose(page, "page.md"))) == "page.md:1: 'Odd': write: unusual"


def test_messages_of_modules_are_checked() -> None:
    source = """\
'''A module that is told anew.'''
KEY = "oddity"
raise ValueError(f"{KEY} goes" " on")
say("it is", told, "told so")
"""
    found = [(finding.line, finding.words) for finding in in_messages(source, "module.py")]
    assert found == [(3, "goes on"), (4, "told")]


if __name__ == "__main__":
    print(*all_findings(), sep="\n")
