"""Questions of users are answered after few pages and words; tools/questions.tsv lists them."""

import statistics

import pytest

from tools.questions import MOST_ON_AVERAGE, MOST_PAGES, MOST_WORDS, Question, read_questions, words_before

QUESTIONS = read_questions()


@pytest.mark.parametrize("question", QUESTIONS, ids=[one.text for one in QUESTIONS])
def test_answer_is_near(question: Question) -> None:
    assert (len(question.way) <= MOST_PAGES, question.words() <= MOST_WORDS) == (True, True), question.words()
    for (page, link), (following, _) in zip(question.way, question.way[1:], strict=False):
        assert page != following
        assert link.split("#")[0].rpartition("/")[2] == following.rpartition("/")[2]


def test_answers_are_near_on_average() -> None:
    assert statistics.mean(one.words() for one in QUESTIONS) <= MOST_ON_AVERAGE


def test_words_are_those_that_a_reader_sees() -> None:
    before = words_before("README.md", "decodeonce decodes each JPEG")
    assert before == 1  # the title; not the pictures and their texts
    with pytest.raises(ValueError, match=r"README.md does not contain 'no such text', the way of a question"):
        words_before("README.md", "no such text")
