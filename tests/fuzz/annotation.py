"""XML annotations and their boxes."""

from collections.abc import Iterator
from random import Random

from decodeonce.prep.pixels.decode import pixel_box
from decodeonce.prep.recipe import BoxRules
from decodeonce.prep.sources.boxed import Annotation, parse, usable_box
from tests.fuzz import Mutate

RULES = (BoxRules(), BoxRules(margin=0.5, least=4), BoxRules(margin=10))
SEED = b"""<annotation><folder>n01440764</folder><filename>%s</filename><size><width>500</width><height>375</height>
<depth>3</depth></size><object><name>n01440764</name><bndbox><xmin>13</xmin><ymin>22.5</ymin><xmax>485</xmax>
<ymax>298</ymax></bndbox></object><object><name>dog</name><bndbox><xmin>485</xmin><ymin>-3</ymin><xmax>1e3</xmax>
<ymax>1</ymax></bndbox></object></annotation>"""
PIECES = (
    *(b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"<!DOCTYPE a SYSTEM 'file:///etc/passwd'>", b"&b;", b"&#49;"),
    *(b"<?xml version='1.0' encoding='utf-16'?>", b"<?xml version='1.0' encoding='x-user-defined'?>", b"\xef\xbb\xbf"),
    *(b"<![CDATA[1]]>", b"1e-320", b"1e308", b"nan", b"-inf", b"1_0", b"<size>" * 50, b"</annotation>"),
)


def seeds() -> Iterator[bytes]:
    """Yield an annotation with a valid and an inverted box, and one without objects in another encoding."""
    yield SEED
    yield b'<?xml version="1.0" encoding="ISO-8859-1"?>' + SEED.partition(b"<object>")[0] + b"</annotation>"


def mutate(data: bytes, size: int, random: Random, mutate: Mutate) -> bytes:
    """Change the text of a tag, insert a piece, copy a tag, or let libFuzzer change the bytes."""
    kind = random.randrange(4)
    if kind == 0:
        return mutate(data, size)
    parts = data.split(b"<")
    index = random.randrange(len(parts))
    if kind == 1:
        parts[index] = parts[index].partition(b">")[0] + b">" + mutate(parts[index].partition(b">")[2], 32)
    elif kind == 2:
        parts[index] = parts[index] + random.choice(PIECES)
    else:
        parts.insert(random.randrange(len(parts) + 1), parts[index])
    return b"<".join(parts)[:size]


def TestOneInput(data: bytes) -> None:
    """Either parsing raises ValueError, or all objects are inside their image and images of any size can be cropped."""
    try:
        annotation = parse(data)
    except ValueError:
        return
    for name, (left, top, right, bottom) in annotation.objects:
        assert name
        assert 0 <= left <= right <= annotation.width, annotation
        assert 0 <= top <= bottom <= annotation.height, annotation
        for rules in RULES:
            _check(usable_box((left, top, right, bottom), annotation, rules), annotation)


def _check(box: object, annotation: Annotation) -> None:
    if isinstance(box, tuple):
        assert all(0 <= side <= 1 for side in box), (box, annotation)
        for width, height in ((1, 1), (500, 375), (65500, 1)):
            left, top, right, bottom = pixel_box(box, width, height)
            assert 0 <= left < right <= width, (box, annotation)
            assert 0 <= top < bottom <= height, (box, annotation)
