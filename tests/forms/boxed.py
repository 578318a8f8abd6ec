"""Class folders with a box around every whole image."""

from collections.abc import Sequence
from pathlib import Path

from decodeonce.prep.recipe import BoxRules
from decodeonce.sources import BoxedSource, FolderSource, Source
from tests.forms.folder import write_folder
from tests.forms.form import Form, Pic

XML = """<annotation><size><width>9</width><height>9</height></size><object><name>{}</name>
<bndbox><xmin>0</xmin><ymin>0</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"""


def _boxed(root: Path, pics: Sequence[Pic]) -> Source:
    (root / "xml").mkdir(exist_ok=True)
    for pic in pics:
        (root / f"xml/{pic.stem}.xml").write_text(XML.format(pic.wnid))
    return BoxedSource(FolderSource(write_folder(root / "images", pics)), root / "xml", BoxRules())


FORMS = [Form("folder+boxes", _boxed)]
