"""Lists of images: paths alone, TSV and CSV with labels."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from decodeonce.sources import Source, open_list
from tests.forms.folder import write_folder
from tests.forms.form import Form, Pic


def write_list(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    return file


def _paths(root: Path, pics: Sequence[Pic]) -> Source:
    write_folder(root / "images", pics)
    lines = [f"{pic.wnid}/{pic.stem}.JPEG\n" for pic in pics]
    return open_list(write_list(root / "list.txt", "".join(lines)), root=root / "images")


def _tsv(root: Path, pics: Sequence[Pic]) -> Source:
    folder = write_folder(root / "images", [pic._replace(wnid="all") for pic in pics])
    lines = [f"{folder}/all/{pic.stem}.JPEG\t{pic.wnid}\r\n" for pic in pics]
    return open_list(write_list(root / "list.tsv", "".join(lines)))


def _csv(root: Path, pics: Sequence[Pic]) -> Source:
    write_folder(root / "images", [pic._replace(wnid='a, "b"') for pic in pics])
    wnids = sorted({pic.wnid for pic in pics})
    text = io.StringIO(newline="")
    rows = [(number, wnids.index(pic.wnid), f'a, "b"/{pic.stem}.JPEG') for number, pic in enumerate(pics)]
    csv.writer(text).writerows([("index", "Label", "Path"), *rows])
    return open_list(write_list(root / "images" / "list.csv", text.getvalue()))


FORMS = [
    Form("list", _paths, in_order=False),
    Form("list-tsv", _tsv, in_order=False),
    Form("list-csv-numbers", _csv, in_order=False, classes_named=False),
]
