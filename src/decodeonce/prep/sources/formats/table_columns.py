"""Which columns of a Parquet file are the picture's and the label's, and the names that its schema gives classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.sources.formats.tables import Columns, pyarrow

IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "jpeg", "png")
LABEL_COLUMNS = ("label", "labels", "class", "cls", "fine_label", "target", "category", "class_name")
EXPECTED = {"picture": "binary, or a struct with binary `bytes`", "label": "integers or strings"}
EXPECTED_NUMBERS = "expected integers, floats or booleans, or lists of these"


def find_columns(path: str, schema: Any, *, picture: str = "", label: str = "", numbers: Sequence[str] = ()) -> Columns:
    """The columns of a schema that hold pictures and labels, or the named ones; BuildError where that is not plain.

    `numbers` are columns to keep.
    """
    pictures = {field.name: place for field in schema if (place := _picture(field)) is not None}
    likely = [name for name in pictures if name.lower() in IMAGE_COLUMNS] if len(pictures) > 1 else list(pictures)
    labels = [field.name for field in schema if _is_label(field.type)]
    coded = [name for name in labels if class_names(schema, name) is not None]
    known = coded or [name for name in labels if name.lower() in LABEL_COLUMNS]
    if picture:
        likely = [name for name, leaves in pictures.items() if picture in (name, leaves[0])]
    chosen = _choose(path, schema, "picture", likely, picture)
    known = [name for name in labels if name == label] if label else known
    for name in numbers:
        _check_numbers(path, schema, name)
    return Columns(*pictures[chosen], _choose(path, schema, "label", known, label), list(numbers))


def _check_numbers(path: str, schema: Any, name: str) -> None:
    fields = [field for field in schema if field.name == name]
    kinds = [getattr(field.type, "value_type", field.type) for field in fields]
    if len(fields) != 1:
        raise BuildError(f"{path}: --column {name} is not there; {_describe_columns(schema)}")
    if not _is_one_of(kinds[0], "integer", "float32", "float64", "boolean"):
        text = "; for text, store token ids" if _is_one_of(kinds[0], "string", "large_string", "string_view") else ""
        raise BuildError(f"{path}: --column {name} is {fields[0].type}, {EXPECTED_NUMBERS}{text}")


def _describe_columns(schema: Any) -> str:
    return "there are " + ", ".join(f"{field.name} ({field.type})" for field in schema)


def image_columns(schema: Any) -> list[str]:
    """The leaf columns of a schema that may hold pictures."""
    return [place[0] for field in schema if (place := _picture(field)) is not None]


def _choose(path: str, schema: Any, what: str, found: list[str], named: str) -> str:
    """The one column that was found, or was `named`; BuildError where there is none, or several."""
    if len(found) == 1:
        return found[0]
    there = _describe_columns(schema)
    if named:
        problem = f"cannot be the {what}s, expected {EXPECTED[what]}" if named in schema.names else "is not there"
        raise BuildError(f"{path}: --{what}-column {named} {problem}; {there}")
    problem = f"{' and '.join(found)} may each be" if found else "no column is plainly"
    raise BuildError(f"{path}: {problem} the {what}s; name one with --{what}-column; {there}")


def _picture(field: Any) -> tuple[str, str] | None:
    """The names of the leaf columns with a picture's bytes and path, if this column has pictures."""
    if _is_binary(field.type):
        return field.name, ""
    if not pyarrow().types.is_struct(field.type):
        return None
    inner = {part.name: part.type for part in field.type}
    if "bytes" not in inner or not _is_binary(inner["bytes"]):
        return None
    return f"{field.name}.bytes", f"{field.name}.path" if "path" in inner else ""


def _is_binary(kind: Any) -> bool:
    return _is_one_of(kind, "binary", "large_binary", "binary_view")


def _is_label(kind: Any) -> bool:
    kind = kind.value_type if pyarrow().types.is_dictionary(kind) else kind
    return _is_one_of(kind, "integer", "string", "large_string", "string_view")


def _is_one_of(kind: Any, *names: str) -> bool:
    """Whether a type is one of these; pyarrow 14 does not know the views."""
    asked = [getattr(pyarrow().types, f"is_{name}", None) for name in names]
    return any(ask(kind) for ask in asked if ask is not None)


def class_names(schema: Any, label: str) -> list[str] | None:
    """The names that Hugging Face's ClassLabel gives the numbers of a column, from the schema's metadata."""
    try:
        known = json.loads((schema.metadata or {})[b"huggingface"])
        names = known["info"]["features"][label]["names"]
        found = list(names.values() if isinstance(names, dict) else names)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return found if all(isinstance(name, str) for name in found) and _is_text("".join(found)) else None


def _is_text(name: str) -> bool:
    try:
        name_bytes(name)
    except UnicodeEncodeError:  # half a character, as JSON may have it
        return False
    return True
