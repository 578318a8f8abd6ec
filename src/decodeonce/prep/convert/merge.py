"""The classes, columns, recipe and source of a converted store, derived from those of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.prep.pixels.versions import DISTRIBUTIONS
from decodeonce.store.hashing import hexdigest
from decodeonce.store.layout import StorePaths
from decodeonce.store.manifest import ImageClass, Manifest
from decodeonce.store.reader import Store
from decodeonce.store.signed import canonical

# Files that every store has, so no column can use them.
FIXED = {path.name for path in (StorePaths(Path()).labels, StorePaths(Path()).checksums)}


def merged_classes(
    stores: Sequence[tuple[ImageClass, ...]],
) -> tuple[tuple[ImageClass, ...], list[list[int]]]:
    """Return the merged classes and, for each store, the new label of each of its labels.

    The classes of the first store come first. Classes with the same name become one, which gets the first description
    that is not empty.
    """
    classes = list(stores[0])
    labels = {cls.name: label for label, cls in reversed(list(enumerate(classes)))}
    new_labels = [list(range(len(classes)))]
    for others in stores[1:]:
        for cls in others:
            label = labels.setdefault(cls.name, len(classes))
            if label == len(classes):
                classes.append(cls)
            elif not classes[label].description:
                classes[label] = replace(classes[label], description=cls.description)
        new_labels.append([labels[cls.name] for cls in others])
    return tuple(classes), new_labels


def merged_box_classes(stores: Sequence[Manifest]) -> tuple[tuple[str, ...], list[list[int]]]:
    """Return the merged box classes and, for each store, the new label of each of its box labels."""
    merged, new_labels = merged_classes([tuple(map(ImageClass, store.box_classes or ())) for store in stores])
    return tuple(cls.name for cls in merged), new_labels


def check_mergeable(stores: Sequence[Store]) -> None:
    """Raise BuildError unless the rows of all these stores can be in one store."""
    path, first = stores[0].paths.root, stores[0].manifest
    for store in stores[1:]:
        other_path, other = store.paths.root, store.manifest
        if other.shape != first.shape:
            raise BuildError(
                f"{path} has rows of {shape_text(first.shape)}, {other_path} has rows of {shape_text(other.shape)}; "
                "all rows of a store have one shape: convert one of the stores with --size first"
            )
        columns, other_columns = _columns_text(first), _columns_text(other)
        if columns != other_columns:
            raise BuildError(
                f"{path} has {columns}, {other_path} has {other_columns}; "
                "stores can be merged only if they have the same columns: change one with `prep column add` or `remove`"
            )
    if first.shape[2] != 3:
        raise BuildError(f"{path}: rows are {shape_text(first.shape)}; only rows with 3 channels can be converted")
    names = [column.name for column in first.columns]
    for column in first.columns:
        if column.file in FIXED or column.file.startswith("images-") or names.count(column.name) > 1:
            raise BuildError(f"{path}: column {column.name!r} is in {column.file}, expected a unique name and file")


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape: 224x224x3."""
    return "x".join(map(str, shape))


def _columns_text(manifest: Manifest) -> str:
    columns = sorted(f"{c.name} ({c.dtype}{list(c.shape)})" for c in manifest.columns)
    if manifest.box_classes is not None:  # without class names, the box labels of two stores cannot be compared
        columns.append("the names of box_labels")
    return f"the columns {', '.join(columns)}" if columns else "no columns"


def converted_recipe(
    found: Sequence[dict[str, Any]], shape: tuple[int, int, int], recipe: dict[str, Any], selected: dict[str, object]
) -> dict[str, Any]:
    """Return the recipe for store.json: that of the inputs with the changes of the conversion.

    `found` are the recipes of the inputs, whose rows have `shape`; keys that other writers added are kept. `recipe` is
    that of the conversion. `selected` is its selection and order, empty for all rows in their order. If the inputs'
    recipes differ, all of them are listed under "joined".
    """
    own: dict[str, object] = {"selected": selected} if selected else {}
    if (recipe["height"], recipe["width"]) != shape[:2]:
        by = {name: version for name, version in recipe["decoders"].items() if name in DISTRIBUTIONS}
        own |= {"resized_from": list(shape[:2]), "resize_filter": recipe["filter"], "resized_by": by}
    base, *others = [_with_container(one, recipe) for one in found]
    if any(other != base for other in others) or any(key in base for key in own):
        base = _with_container({"joined": list(found)}, recipe)
    if "resized_from" in own or "joined" in base:
        own |= {"height": recipe["height"], "width": recipe["width"]}
    return {**base, **own}


def _with_container(found: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with the container, shard size and libhdf5 version of the conversion."""
    updated = {**found, "container": recipe["container"], "shard_size": recipe["shard_size"]}
    decoders = found.get("decoders", {})
    if isinstance(decoders, dict):
        updated["decoders"] = {name: version for name, version in decoders.items() if name != "libhdf5"}
        updated["decoders"] |= {name: version for name, version in recipe["decoders"].items() if name == "libhdf5"}
        if not updated["decoders"]:
            del updated["decoders"]
    return updated


def converted_source(manifests: Sequence[Manifest], selected: dict[str, object]) -> dict[str, Any]:
    """Return the source for store.json: that of a single unselected input, otherwise the digests of all inputs."""
    if len(manifests) == 1 and not selected:
        return manifests[0].source
    stores = [manifest.digest for manifest in manifests]
    digest = hexdigest(canonical({"stores": stores, "selected": selected}))
    return {"kind": "store", "digest": digest, "stores": stores}
