"""A tree of class folders."""

from collections.abc import Sequence
from pathlib import Path

from decodeonce.sources import FolderSource, Source
from tests.forms.form import Form, Pic


def write_folder(root: Path, pics: Sequence[Pic]) -> Path:
    """Write root/<wnid>/<stem>.JPEG and return root."""
    for pic in pics:
        (root / pic.wnid).mkdir(parents=True, exist_ok=True)
        (root / pic.wnid / f"{pic.stem}.JPEG").write_bytes(pic.data)
    return root


def _folder(root: Path, pics: Sequence[Pic]) -> Source:
    return FolderSource(write_folder(root / "images", pics))


FORMS = [Form("folder", _folder)]
