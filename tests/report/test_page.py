"""`prep report` writes a reproducible, valid and self-contained HTML page, also if the store is damaged."""

import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeonce.cli import printable
from decodeonce.cli.report import page as page_module
from decodeonce.cli.report import report
from decodeonce.cli.report.page import POLICY, environment
from decodeonce.cli.report.page import page as render_page
from decodeonce.store import open_store, stage_store
from tests.command import prep
from tests.images import jpeg, make_tree
from tests.report.stores import gather_facts, make_store_of_many_classes
from tests.store.signing import replace_file, resign
from tests.stores import make_store, random_images

VOID = {"img", "link", "meta"}
SECTIONS = ["images", "facts", "classes", "sizes", "levels", "rejects", "recipe", "checks"]


class Outline(HTMLParser):
    """The elements and the text of a page; asserts that elements are closed in order."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page.decode())
        self.text = " ".join(self.text.split())  # browsers collapse white space, too
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        assert len(dict(attributes)) == len(attributes)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data

    def all(self, *tags: str) -> Iterator[dict[str, str | None]]:
        """Yield the attributes of each element with one of these tags, in order."""
        return (attributes for tag, attributes in self.elements if tag in tags)


def outline(store: Path) -> Outline:
    return Outline(render_page(gather_facts(store)))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store_of_many_classes(tmp_path_factory.mktemp("stores") / "many.store")


def test_page_does_not_depend_on_the_path_of_the_store(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "src", per_class=4)
    (tree / "train/n00000001/n00000001_0.JPEG").write_bytes(jpeg(80, 60)[:-400])
    assert prep("build", "imagenet", tree, tmp_path / "a.store", "--size", 24, "--max-bad", 1).returncode == 0
    shutil.copytree(tmp_path / "a.store", tmp_path / "elsewhere/a.store")
    for folder, store in (("x", "a.store"), ("y", tmp_path / "elsewhere/a.store")):
        (tmp_path / folder).mkdir()
        out = tmp_path / folder / "page.html"
        result = prep("report", store, "--out", out, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.startswith(f"{out}: report on {store} written, ")
    page = (tmp_path / "x/page.html").read_bytes()
    assert page == (tmp_path / "y/page.html").read_bytes()
    assert str(tmp_path).encode() not in page
    parsed = Outline(page)
    assert "11 images of 24x24 pixels in 3 classes" in parsed.text
    assert "Intact: every file and every row is unchanged." in parsed.text
    assert "train/n00000001/n00000001_0.JPEGtruncated" in parsed.text


def test_page_is_valid_and_self_contained(many: Path) -> None:
    page = render_page(gather_facts(many))
    parsed = Outline(page)
    assert page.startswith(b'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">')
    assert page.endswith(b"</html>\n")
    policy = [meta["content"] for meta in parsed.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy == [POLICY]
    tags = [tag for tag, _ in parsed.elements]
    assert tags.index("style") > tags.index("meta")
    assert not list(parsed.all("script", "iframe", "object", "embed", "base", "form", "use", "image"))
    assert [link["href"] for link in parsed.all("link")] == ["data:,"]
    assert all((image["src"] or "").startswith("data:image/") for image in parsed.all("img"))
    assert all((link["href"] or "").startswith("#") for link in parsed.all("a"))
    assert not re.search(rb"url\(|@import|https?:", page)
    assert [section["id"] for section in parsed.all("section")] == SECTIONS
    assert all(image["alt"] for image in parsed.all("img"))
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    labels = [name for _, attributes in parsed.elements for name in (attributes.get("aria-labelledby") or "").split()]
    assert {*labels, *((link["href"] or "")[1:] for link in parsed.all("a"))} <= set(ids)


def test_page_states_the_facts_of_the_store(many: Path) -> None:
    text = outline(many).text
    labels = open_store(many).labels
    counts = np.sort(np.bincount(labels, minlength=60))
    assert f"60 classes: from 0 to {counts[-1]} rows each, median {np.median(counts):g}." in text
    assert all(f"class{label} the class {label}" in text for label in range(60))
    mean, std = open_store(many).manifest.pixel_mean, open_store(many).manifest.pixel_std
    assert all(f"{value:.2f}" in text for value in (*mean, *std))
    assert "10 images were rejected. 30 unusual images were kept." in text
    assert "Damaged: row 7. Damaged rows are not in the histograms." in text
    assert "299 of 300 rows" in text
    assert open_store(many).manifest.digest in text


@pytest.mark.parametrize("name", ["labels.npy", "samples.tsv", "checksums.npy", "extra.npy"])
def test_damaged_file_is_reported_and_the_rest_is_shown(
    name: str, many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(many, tmp_path / "a")
    content = (tmp_path / "a" / name).read_bytes()
    (tmp_path / "a" / name).write_bytes(content[:-9] + b"\0" * 9 if content[-9:] != b"\0" * 9 else content[:-1] + b"\1")
    report(tmp_path / "a", tmp_path / "a.html")
    notes = capsys.readouterr().err.splitlines()
    assert notes[0].startswith(f"prep: note: {tmp_path / 'a' / name}: damaged: xxh3_64 is")
    assert len(notes) == (1 if name == "checksums.npy" else 2)
    parsed = Outline((tmp_path / "a.html").read_bytes())
    assert [section["id"] for section in parsed.all("section")] == SECTIONS
    assert f"damaged: {name}" in parsed.text
    assert re.search(r"Damaged: (1 row, )?1 file\.", parsed.text)
    shown = {"labels.npy": "unknown class", "checksums.npy": "not checked"}
    assert shown.get(name, f"Not shown: {name} is damaged." if name.endswith("tsv") else "") in parsed.text


def test_signed_file_without_checksums_is_reported(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(5))
    replace_file(root, "checksums.npy", (root / "labels.npy").read_bytes())
    text = outline(root).text
    assert "Damaged: 1 file. See Checks." in text
    assert "not checked" in text


def test_only_rows_that_were_read_are_called_intact_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_store(tmp_path / "a", random_images(300, shape=(4, 4, 3)))
    text = outline(root).text
    assert "Intact: every file and every row is unchanged." in text
    assert "The other values are from all 300 rows." in text
    monkeypatch.setattr(page_module, "ALL_BYTES", 0)
    monkeypatch.setattr(page_module, "SAMPLE_BYTES", 48 * 30)
    text = outline(root).text
    assert "No damage found. Every file was checked, and 87 of 300 rows." in text
    assert "The other values are from 30 of 300 rows, evenly spaced." in text
    assert "checksum of 87 of 300: 30 evenly spaced, the first 64" in text
    assert "the first 64, and the unusual images" not in text
    shard = root / open_store(root).manifest.shards[0].file
    shard.write_bytes(shard.read_bytes()[: -300 * 48] + b"\0" * 300 * 48)
    assert "Damaged: 87 rows of the 87 that were read. See Checks." in outline(root).text


def test_class_with_an_empty_name_is_shown(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(2))
    resign(root, lambda facts: [cls.update(name="", description="") for cls in facts["classes"]])
    html = render_page(gather_facts(root)).decode()
    assert "<figcaption><span>row 0</span></figcaption>" in html


def test_tiny_staged_and_foreign_stores_have_a_page(tmp_path: Path) -> None:
    one = make_store(tmp_path / "one", np.zeros((1, 1, 1, 1), np.uint8), classes=1)
    assert "1 image of 1x1 pixels in 1 class" in outline(one).text
    foreign = make_store(tmp_path / "foreign", random_images(9, shape=(3, 200, 6)))
    resign(foreign, lambda facts: facts.update(recipe={}, source={}))
    assert "channel 5" in outline(foreign).text
    stage_store(open_store(foreign), tmp_path / "part", rows=range(4, 6))
    text = outline(tmp_path / "part").text
    assert "The store is a staged part: it holds rows 4..5 of 9." in text
    assert "checksum of all 2" in text
    assert ("Rows held here" in text, "Rows held here" in outline(foreign).text) == (True, False)
    facts = {"height": 8, "width": 9, "levels": None, "map": "", "shard_size": 2 << 30, "shuffle_seed": None}
    resign(foreign, lambda content: content.update(recipe=facts))
    flags = outline(foreign).text
    assert re.search(r"--shard-size\s*2GiB\s*--shuffle-seed\s*none\s*--size\s*8x9", flags), flags[:200]
    assert "--levels" not in flags


@pytest.mark.long
def test_page_with_thousands_of_classes_and_rejects_is_below_three_megabytes(tmp_path: Path) -> None:
    root = make_store(tmp_path / "a", random_images(300), classes=21841)
    lines = b"".join(b"%d/%s.jpg\tgarbled: %d\tkept\n" % (n, b"x" * 200, n) for n in range(20000))
    replace_file(root, "rejects.tsv", b"source\treason\taction\n" + lines)
    page = render_page(gather_facts(root))
    assert 2_000_000 < len(page) < 3_000_000
    text = Outline(page).text
    assert "21,841 classes: from 0 to 1 row each" in text
    assert "Every class (the first 20,000 of 21,841), largest first" in text
    assert "rejects.tsv has 19,500 more lines." in text


TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from("<>&\"'/!-\udcff\ud800\0\x1b\u202e"), max_size=30)


TEMPLATE = environment().from_string(
    '{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}<p title="{{ value }}">{{ bold(text) }}{{ text }}</p>'
)


@given(TEXT, TEXT)
def test_text_is_never_markup(text: str, value: str) -> None:
    html = TEMPLATE.render(text=text, value=value)
    html.encode()
    assert re.fullmatch('<p title="[^"<>]*"><b>[^"<>]*</b>[^"<>]*</p>', html)
    assert all(character.isprintable() for character in html)
    parsed = Outline(html.encode())
    assert parsed.elements[0] == ("p", {"title": printable(value)})
    assert parsed.text == " ".join((2 * printable(text)).split())
