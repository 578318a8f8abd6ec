"""Words and phrases that the documentation and the help texts do not use, because plainer ones exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import WRITTEN, name_of, prose
from tools import command_reference

# Archaic words, words that were used instead of the usual technical term, idioms, and constructions that are hard to
# read. Instead of "of" and "for", sentences start with their subject, and rates are written as images/s.
AVOIDED = [
    *("mend(s|ed|ing)?", "anew", "whoever", "besides?", "told|tells", "(some|no|any|every)body('s)?", "pictures?"),
    *("crews?", "ring", "cures?", "(un)?disturbed", "afar|at hand", "lest|ought|whence|there(of|in)|hence(forth)"),
    *("hitherto", "odd(ly|ity|ities)?(?! (number|width|height|side|address|or even|and even))", "for ever"),
    *("drawn (images|rows|trees?|stores?)", "(go|goes|going|gone|went) on(?! (the|a|an)\\b)", "all the same"),
    *("(become|becomes|became) of", "by (itself|themselves)", "for nothing", "(can|to) be had", "in the place of"),
    *("(come|comes|came) to (its|their|an) end", "(?<!run )(make|makes|making|made) again", "of (ours|yours|theirs)"),
    *("(is|are|was|were) said", "hand(s|ed|ing)? (on|over|out)", "counted in(?=[,.;:)]|$)", "may not", "but for"),
    "(stand|stands|stood|standing) (in|on|at|before|behind|between|above|below|under|there)",
    "(lie|lies|lay|lying|lain) (in|at|on|over|under|below|above|behind|outside|with|there)",
    *("(all|none|nothing|anything|everything) but", "(?<!there )is no (?!longer|more|better|worse|other)\\w+"),
    *("(?<!there )(is|are) none", "of which there (is|are)", "where there (is|are|was|were) (no|none|not)"),
    *("as many (\\w+ ){0,4}as there are", "as (\\w+ ){1,2}(has|have) (it|them)", "for whom?(ever)?"),
    *("so (many|often|long)(?! (that|as))", "whatever (it|they|that|this) (is|are|was|were)", "[,;] (or )?else"),
    ", for (it|they|there|this|that|nothing) (is|are|has|have|was|were|can|will)",
    "(images|rows|bytes|samples|files|lines|[KMGT]B) an? (second|core|image|row|sample|class|epoch|step|batch|rank)",
    "(?-i:Of) [a-z`]\\w*",
]
AVOIDED_WORDS = re.compile(rf"(?:(?<![\w-])|(?=[,;]))(?:{'|'.join(AVOIDED)})(?!\w)", re.IGNORECASE)
INLINE_CODE = re.compile(r"(`+).+?\1")
# The end of a paragraph, or of a row of a table, a heading, a quote or an item of a list.
PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?=\s*(?:[|#>]|[-*] |\d+\. ))")


def avoided_words(text: str) -> list[str]:
    """Return the words of a text that should be avoided, except those in inline code."""
    paragraphs = [" ".join(part.split()) for part in PARAGRAPH_END.split(text)]
    return [found[0] for part in paragraphs for found in AVOIDED_WORDS.finditer(INLINE_CODE.sub("`code`", part))]


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_page_uses_plain_words(page: Path) -> None:
    assert avoided_words(prose(page)) == []


def test_help_texts_use_plain_words() -> None:
    for path, command in command_reference.commands():
        for text in (command.help or "", *(getattr(param, "help", None) or "" for param in command.params)):
            assert avoided_words(text) == [], f"{path} --help"


def test_avoided_words_are_found_across_lines_but_not_in_code() -> None:
    text = "# Odd\n\nThe build goes\non, `told` apart. Of two rows, an odd number is kept.\n- is anew"
    assert avoided_words(text) == ["Odd", "goes on", "Of two", "anew"]
