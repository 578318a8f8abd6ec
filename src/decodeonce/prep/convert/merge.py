"""What a store made of stores says of itself: its classes, columns, recipe and source, from those of its inputs."""

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
from decodeonce.store.signed import canonical

# Files of every store: no column's.
FIXED = {path.name for path in (StorePaths(Path()).labels, StorePaths(Path()).checksums)}


def joined_classes(
    stores: Sequence[tuple[ImageClass, ...]],
) -> tuple[tuple[ImageClass, ...], list[list[int]]]:
    """The classes of the first store, then those that others have beside them; and each store's labels as new ones.

    Classes of one name are one, and have the first description that is there.
    """
    classes = list(stores[0])
    labels = {cls.name: label for label, cls in reversed(list(enumerate(classes)))}
    mapped = [list(range(len(classes)))]
    for others in stores[1:]:
        for cls in others:
            label = labels.setdefault(cls.name, len(classes))
            if label == len(classes):
                classes.append(cls)
            elif not classes[label].description:
                classes[label] = replace(classes[label], description=cls.description)
        mapped.append([labels[cls.name] for cls in others])
    return tuple(classes), mapped


def joined_box_classes(stores: Sequence[Manifest]) -> tuple[tuple[str, ...], list[list[int]]]:
    """The box classes of the first store, then those that others add; and each store's box labels as new ones."""
    joined, labels = joined_classes([tuple(map(ImageClass, store.box_classes or ())) for store in stores])
    return tuple(cls.name for cls in joined), labels


def check_alike(stores: Sequence[tuple[Path, Manifest]]) -> None:
    """BuildError, which names two stores, unless rows of all of them can lie in one."""
    path, first = stores[0]
    for other_path, other in stores[1:]:
        if other.shape != first.shape:
            raise BuildError(
                f"{path} has rows of {shape_text(first.shape)}, {other_path} of {shape_text(other.shape)}: a store has "
                "rows of one shape; convert one of them with --size first"
            )
        mine, theirs = _columns_text(first), _columns_text(other)
        if mine != theirs:
            raise BuildError(f"{path} has {mine}, {other_path} {theirs}: stores to be joined need the same columns")
    if first.shape[2] != 3:
        raise BuildError(f"{path}: rows of {shape_text(first.shape)}; of 3 channels they can be converted")
    names = [column.name for column in first.columns]
    for column in first.columns:
        if column.file in FIXED or column.file.startswith("images-") or names.count(column.name) > 1:
            raise BuildError(f"{path}: column {column.name!r} in {column.file}, expected a name and a file of its own")


def shape_text(shape: Sequence[int]) -> str:
    """A row's shape for people."""
    return "x".join(map(str, shape))


def _columns_text(manifest: Manifest) -> str:
    told = sorted(f"{c.name} ({c.dtype}{list(c.shape)})" for c in manifest.columns)
    if manifest.box_classes is not None:  # without names, labels of two stores cannot be compared
        told.append("the names of box_labels")
    return f"the columns {', '.join(told)}" if told else "no columns"


def converted_recipe(
    found: Sequence[dict[str, Any]], shape: tuple[int, int, int], recipe: dict[str, Any], selected: dict[str, Any]
) -> dict[str, Any]:
    """The recipe for store.json: that of the inputs, whose rows have `shape`, with what the conversion's changes.

    `recipe` is the conversion's, `selected` what it takes and in which order, empty for all as it is. Whatever another
    writer put into its recipe stays; two that differ stand side by side under "joined".
    """
    own: dict[str, Any] = {"selected": selected} if selected else {}
    if (recipe["height"], recipe["width"]) != shape[:2]:
        by = {name: version for name, version in recipe["decoders"].items() if name in DISTRIBUTIONS}
        own |= {"resized_from": list(shape[:2]), "resize_filter": recipe["filter"], "resized_by": by}
    base, *others = [_placed(one, recipe) for one in found]
    if any(other != base for other in others) or any(key in base for key in own):
        base = _placed({"joined": list(found)}, recipe)
    if "resized_from" in own or "joined" in base:
        own |= {"height": recipe["height"], "width": recipe["width"]}
    return {**base, **own}


def _placed(found: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with container, shard size and libhdf5 as these are now."""
    placed = {**found, "container": recipe["container"], "shard_size": recipe["shard_size"]}
    libhdf5, decoders = recipe["decoders"].get("libhdf5"), found.get("decoders", {})
    if isinstance(decoders, dict) and decoders.get("libhdf5") != libhdf5:
        placed["decoders"] = {name: version for name, version in decoders.items() if name != "libhdf5"}
        if libhdf5:
            placed["decoders"]["libhdf5"] = libhdf5
        if not placed["decoders"]:
            del placed["decoders"]
    return placed


def converted_source(manifests: Sequence[Manifest], selected: dict[str, Any]) -> dict[str, Any]:
    """The source for store.json: the input's, if all its rows are taken as they are; else the inputs themselves."""
    if len(manifests) == 1 and not selected:
        return manifests[0].source
    stores = [manifest.digest for manifest in manifests]
    digest = hexdigest(canonical({"stores": stores, "selected": selected}))
    return {"kind": "store", "digest": digest, "stores": stores}
