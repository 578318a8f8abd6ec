"""Sizes, durations and counts in messages, and quoted names in commands."""

import subprocess
from pathlib import Path

import pytest

from decodeonce.formatting import counted, duration_text, quoted, size_text, without_secrets


def test_nonzero_size_is_never_shown_as_zero() -> None:
    expected = {0: "0 bytes", 99: "99 bytes", 100: "0.10 KB", 144_000: "0.14 MB", 99_999_999: "100.00 MB"}
    expected |= {100_000_000: "0.10 GB", 252_150_000_000: "252.15 GB"}
    assert {nbytes: size_text(nbytes) for nbytes in expected} == expected


def test_duration_is_shown_in_fitting_unit() -> None:
    expected = {0.4: "under a second", 1: "1 s", 119: "119 s", 120: "2 min", 7100: "118 min", 7200: "2.0 h"}
    assert {seconds: duration_text(seconds) for seconds in expected} == expected


def test_counted_noun_is_singular_for_one() -> None:
    assert [counted(number, "reject") for number in (0, 1, 2999)] == ["0 rejects", "1 reject", "2,999 rejects"]
    assert [counted(number, "class", "classes") for number in (1, 3)] == ["1 class", "3 classes"]


def test_quoted_name_survives_shell() -> None:
    names = ["plain", "it's", "a\nb", "a\n\\n'b\x1b[1m", "é\u202e\x7f0", "$HOME `id`\t", "\udcff9", "\\", ""]
    words = [quoted(name) for name in names]
    assert all(word.isprintable() for word in words)
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {' '.join(words)}"], capture_output=True, check=True)
    assert done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] == names


def test_quoted_path_is_no_option() -> None:
    assert [quoted(Path(name)) for name in ("-dash.store", "./-a b", "/-c", "d")] == [
        "./-dash.store",
        "'./-a b'",
        "/-c",
        "d",
    ]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://host/a.tar?key=hush", "https://host/a.tar"),
        ("--root=HTTP://me:hush@host:80/a", "--root=HTTP://host:80/a"),
        ("https://me:hush@hush@host", "https://host"),
        ("https:/me:hush@host/a?key=hush", "https:/host/a"),
        ("https://host/a b.tar?key=hush hush", "https://host/a b.tar"),
        ("https://host/me@a", "https://host/me@a"),
        ("is it? me@host", "is it? me@host"),
    ],
)
def test_word_is_shown_without_passwords_and_queries(word: str, shown: str) -> None:
    assert without_secrets(word, word=True) == shown


def test_text_between_urls_is_kept() -> None:
    text = "http://me:hush@host/a?key=hush was moved to 'https://host/b?key=hush': by me@host; ask http://c/?key=hush."
    assert without_secrets(text) == "http://host/a was moved to 'https://host/b': by me@host; ask http://c/."


@pytest.mark.parametrize("text", ["https:/" * 10**6, f"https:{'/' * 10**6}", f"https://host/?{'.' * 10**6}x"])
def test_long_text_of_a_store_is_shown_without_secrets_in_linear_time(text: str) -> None:
    assert text.startswith(without_secrets(text))
