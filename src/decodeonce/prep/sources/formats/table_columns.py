"""Find the columns of images and labels in a Parquet schema, and the class names that the schema has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.prep.entry import name_bytes
from decodeonce.prep.sources.formats.tables import Columns, pyarrow

IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "jpeg", "png")
LABEL_COLUMNS = ("label", "labels", "class", "cls", "fine_label", "target", "category", "class_name")
# The content and the types of the columns that --image-column and --label-column choose.
EXPECTED = {
    "image": ("images", "binary, or a struct with binary `bytes`"),
    "label": ("labels", "integers or strings"),
}
EXPECTED_NUMBERS = "expected integers, floats or booleans, or lists of these"


def find_columns(path: str, schema: Any, *, image: str = "", label: str = "", numbers: Sequence[str] = ()) -> Columns:
    """Return the columns of images and labels of a schema, by type and name, or the ones passed as `image` and `label`.

    `numbers` are the columns of numbers to keep. Raise BuildError if a column is missing, ambiguous or of another type.
    """
    images = {field.name: leaves for field in schema if (leaves := _image_leaves(field)) is not None}
    likely = [name for name in images if name.lower() in IMAGE_COLUMNS] if len(images) > 1 else list(images)
    labels = [field.name for field in schema if _is_label(field.type)]
    coded = [name for name in labels if class_names(schema, name) is not None]
    known = coded or [name for name in labels if name.lower() in LABEL_COLUMNS]
    if image:
        likely = [name for name, leaves in images.items() if image in (name, leaves[0])]
    chosen = _choose(path, schema, "image", likely, image)
    known = [name for name in labels if name == label] if label else known
    for name in numbers:
        _check_numbers(path, schema, name)
    return Columns(*images[chosen], _choose(path, schema, "label", known, label), list(numbers))


def _check_numbers(path: str, schema: Any, name: str) -> None:
    fields = [field for field in schema if field.name == name]
    kinds = [getattr(field.type, "value_type", field.type) for field in fields]
    if len(fields) != 1:
        raise BuildError(f"{path}: --column {name}: no such column; {_describe_columns(schema)}")
    if not _is_one_of(kinds[0], "integer", "float32", "float64", "boolean"):
        text = "; for text, store token ids" if _is_one_of(kinds[0], "string", "large_string", "string_view") else ""
        raise BuildError(f"{path}: --column {name}: has type {fields[0].type}; {EXPECTED_NUMBERS}{text}")


def _describe_columns(schema: Any) -> str:
    return "the columns are " + ", ".join(f"{field.name} ({field.type})" for field in schema)


def image_columns(schema: Any) -> list[str]:
    """Return the leaf columns of a schema that may hold images."""
    return [leaves[0] for field in schema if (leaves := _image_leaves(field)) is not None]


def _choose(path: str, schema: Any, what: str, found: list[str], named: str) -> str:
    """Return the only column in `found`; raise BuildError if there is none or several. `named` is the user's choice."""
    if len(found) == 1:
        return found[0]
    columns, (content, expected) = _describe_columns(schema), EXPECTED[what]
    if named:
        problem = f"cannot hold {content}, expected {expected}" if named in schema.names else "no such column"
        raise BuildError(f"{path}: --{what}-column {named}: {problem}; {columns}")
    problem = f"several columns may hold {content} ({', '.join(found)})" if found else f"no column looks like {content}"
    raise BuildError(f"{path}: {problem}; choose one with --{what}-column; {columns}")


def _image_leaves(field: Any) -> tuple[str, str] | None:
    """Return the leaf columns with an image's bytes and path ("" for none), or None for a column of other content."""
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
    """Return whether a type is one of these. pyarrow 14 has no views."""
    asked = [getattr(pyarrow().types, f"is_{name}", None) for name in names]
    return any(ask(kind) for ask in asked if ask is not None)


def class_names(schema: Any, label: str) -> list[str] | None:
    """Return the names in Hugging Face's ClassLabel of a column, from the schema's metadata; None without one."""
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
    except UnicodeEncodeError:  # a lone surrogate, which JSON can contain
        return False
    return True
