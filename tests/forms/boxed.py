"""Class folders with a box around every whole image."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decodeonce.prep.recipe import BoxRules
from decodeonce.sources import BoxedSource, FolderSource, Source
from tests.forms.folder import write_folder
from tests.forms.form import Form, Pic

NamedBox = tuple[str, tuple[float, float, float, float]]


def xml(
    *objects: NamedBox, size: tuple[Any, Any] | None = (100, 80), filename: str = "%s", database: str = "Unknown"
) -> str:
    """Return an annotation in the format of PASCAL VOC and ImageNet."""
    drawn = "".join(
        f"<object><name>{name}</name><pose>Left</pose><bndbox><xmin>{left}</xmin><ymin>{top}</ymin><xmax>{right}</xmax>"
        f"<ymax>{bottom}</ymax></bndbox></object>"
        for name, (left, top, right, bottom) in objects
    )
    head = f"<folder>x</folder><filename>{filename}</filename><source><database>{database}</database></source>"
    sides = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>" if size else ""
    return f"<annotation>\n{head}{sides}{drawn}</annotation>\n"


def whole(name: str) -> str:
    """Return an annotation with one object, which fills its image."""
    return xml((name, (0, 0, 9, 9)), size=(9, 9))


def _boxed(root: Path, pics: Sequence[Pic]) -> Source:
    (root / "xml").mkdir(exist_ok=True)
    for pic in pics:
        (root / f"xml/{pic.stem}.xml").write_text(whole(pic.wnid))
    return BoxedSource(FolderSource(write_folder(root / "images", pics)), root / "xml", BoxRules())


FORMS = [Form("folder+boxes", _boxed)]
