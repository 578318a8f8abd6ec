"""A source whose samples are the rows of finished stores, so no image is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.building.plan import block_rows_for
from decodeonce.prep.convert.rows import StoreRows, converted
from decodeonce.prep.listing import Entry, Listing, Row, RowMaker, Scan, name_bytes
from decodeonce.prep.pixels.versions import DISTRIBUTIONS
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import DecodedRows, Source
from decodeonce.store.hashing import canonical, hexdigest
from decodeonce.store.layout import Json, Paired
from decodeonce.store.manifest import Column, Manifest, overlap
from decodeonce.store.select import Selection, labels_of, matching_lines
from decodeonce.store.table import read_rejects

InputRow = tuple[int, int]  # the index of a store, and a row of it


class StoreSource(Source):
    """The rows of finished stores, one store after the other unless they are sorted.

    An entry's unit is the index of its store, and its place is the row in that store. Its version is the digest of
    the store, so a store that was replaced counts as a changed source.

    Args:
        root: Path of the first store.
        stores: (path, manifest digest) of each store.
        selection: The fields of a `Selection`. Row numbers count through all stores.
        sort: "class" sorts by label, "source" by the bytes of the source names; the sort is stable. None keeps the
            order.
        size: (height, width) in pixels of the new rows, or None to keep the size.
    """

    kind = "store"

    def __init__(
        self,
        root: Path,
        *,
        stores: Sequence[Sequence[str]],
        selection: Json,
        sort: str | None = None,
        size: Sequence[int] | None = None,
    ) -> None:
        super().__init__(root)
        self._arguments: Json = {"stores": stores, "selection": selection, "sort": sort, "size": size}
        self._stores, self._selection, self._sort, self._size = stores, Selection(**selection), sort, size

    @property
    def paired(self) -> tuple[Paired, ...]:  # type: ignore[override]
        """What is paired with the images, the same in all stores."""
        return self.inputs[0].manifest.paired

    @cached_property
    def inputs(self) -> list[StoreRows]:
        """The stores, opened on first use."""
        return [StoreRows(Path(path), digest) for path, digest in self._stores]

    @cached_property
    def _count(self) -> int:
        return sum(len(rows.store) for rows in self.inputs)

    @cached_property
    def _numbers(self) -> range:
        return self._selection.numbers(self._count)

    def arguments(self) -> Json:
        return self._arguments

    def selected_rows(self) -> Iterator[InputRow]:
        """Yield the selected rows in the order of their numbers."""
        labels, first = labels_of(self._selection.classes, self.inputs[0].manifest.classes), 0
        for unit, rows in enumerate(self.inputs):
            held = overlap(self._numbers, range(first, first + len(rows.store)))
            its_rows = range(held.start - first, held.stop - first)
            for row, _ in matching_lines(rows.store.paths.samples, its_rows, labels, self._selection.source):
                yield unit, row
            first += len(rows.store)

    def _selected(self, shuffle_seed: int | None) -> dict[str, object]:
        """Return the entry "selected" of the new recipe: empty if all rows are taken in their order."""
        facts = {
            "classes": list(self._selection.classes) or None,
            "source": self._selection.source,
            "rows": [self._numbers.start, self._numbers.stop] if len(self._numbers) < self._count else None,
            "sort": self._sort,
            "shuffle_seed": shuffle_seed,
        }
        return {name: value for name, value in facts.items() if value is not None}

    def scan(self) -> Scan:
        """Return the selected rows in their order; the listing raises BuildError if there are none.

        The classes are also those without selected rows, so that labels keep their meaning.
        """
        for rows in self.inputs:
            rows.check_files()
        first = self.inputs[0].manifest
        return Scan(self._entries(), first.classes, box_classes=first.box_classes, finish=self._with_rejects)

    def _with_rejects(self, found: Listing) -> Listing:
        if not len(found):
            raise BuildError(f"{self.root}: no row is selected; `prep ls` lists rows, classes and sources")
        # The lines of the inputs' rejects.tsv; with a selection, only the "kept" lines of selected rows.
        files = enumerate(rows.store.paths.rejects for rows in self.inputs)
        listed = [(unit, reject) for unit, file in files for reject in read_rejects(file)]
        if self._selected(None).keys() - {"sort"}:
            kept = {(unit, reject.source) for unit, reject in listed if reject.action == "kept"}
            selected = {(entry.unit, entry.text) for entry in self._entries()} & kept if kept else set()
            listed = [(unit, reject) for unit, reject in listed if (unit, reject.source) in selected]
        return replace(found, carried=[reject for _, reject in listed])

    def _entries(self) -> Iterator[Entry]:
        for unit, place in sorted(self.selected_rows(), key=self._sort_key) if self._sort else self.selected_rows():
            rows = self.inputs[unit]
            sample = rows.sample(place)
            stamp = int(rows.manifest.digest, 16) >> 1  # below 2^63, the limit of a version
            size = rows.manifest.row_bytes
            yield Entry(name_bytes(sample.source), sample.label, size, stamp, unit=unit, place=place)

    def _sort_key(self, input_row: InputRow) -> int | bytes:
        unit, row = input_row
        if self._sort == "class":
            return int(self.inputs[unit].store.labels[row])
        return name_bytes(self.inputs[unit].sample(row).source)

    def read(self, entry: Entry) -> list[bytes]:
        """Return the bytes of a row; raise StoreError if they do not match its checksum."""
        return [self.inputs[entry.unit].read(entry.place)]

    def row_maker(self, recipe: Recipe) -> RowMaker:
        """Return this source: it knows the original size, digest and box of each row."""
        self._recipe = recipe
        return self

    def row(self, data: bytes, entry: Entry, *paired: bytes) -> Row:
        """Return the new row for the bytes of a stored row, which hold what is paired with its image."""
        rows = self.inputs[entry.unit]
        sample, pixels = rows.sample(entry.place), converted(data, rows.manifest, self._recipe)
        return Row(pixels, sample.width, sample.height, "", int(sample.digest, 16), box=sample.box)

    def columns(self) -> list[Column]:
        """Return the columns, which are the same in all stores."""
        return list(self.inputs[0].manifest.columns)

    def column_values(self, column: Column, rows: DecodedRows) -> NDArray[np.generic]:
        """Return the values of the rows. Boxes are scaled to the new size."""
        values = np.empty((len(rows.samples), *column.shape), column.dtype)
        units, places = rows.samples["unit"], rows.samples["place"]
        for unit in np.unique(units).tolist():
            values[units == unit] = self.inputs[unit].store.columns[column.name][places[units == unit]]
        if self._size and (column.name, column.shape[-1:], column.dtype) == ("boxes", (4,), "<f4"):
            height, width = np.divide(self._size, self.inputs[0].manifest.shape[:2])
            values = values * np.array([width, height, width, height])
        return values

    def manifest_facts(self, recipe: Json, digest: str) -> dict[str, object]:
        """Return the recipe and source of the inputs with the changes of the conversion."""
        manifests, selected = [rows.manifest for rows in self.inputs], self._selected(recipe["shuffle_seed"])
        return {
            "recipe": converted_recipe([m.recipe for m in manifests], manifests[0].shape, recipe, selected),
            "source": converted_source(manifests, selected),
            "decoder_crashes": sum(manifest.decoder_crashes for manifest in manifests),
        }

    def block_rows(self, count: int, row_bytes: int) -> int | None:
        """Return the block size of a single input of `count` such rows, or None to leave the choice to the build.

        A build sizes its blocks before it knows its rejects. The input's size is kept if a build of `count` rows plus
        any number of the input's rejects would choose it, so that a converted store equals a built one.
        """
        first = self.inputs[0].manifest
        if len(self.inputs) > 1 or first.count != count or first.row_bytes != row_bytes:
            return None
        most = count + sum(reject.action != "kept" for reject in read_rejects(self.inputs[0].store.paths.rejects))
        usual = range(block_rows_for(count, row_bytes), block_rows_for(most, row_bytes) + 1)
        return first.block_rows if first.block_rows in usual else None


def converted_recipe(
    found: Sequence[Json], shape: tuple[int, int, int], recipe: Json, selected: dict[str, object]
) -> Json:
    """Return the recipe for store.json: that of the inputs with the changes of the conversion.

    `found` are the recipes of the inputs, whose rows have `shape`; keys that other writers added are kept. `recipe` is
    that of the conversion. `selected` is its selection and order, empty for all rows in their order. Of several inputs,
    it has what they share: they may differ in their selections and shuffle seeds, and `converted_source` names them.
    """
    base, *others = [with_container(one, recipe) for one in found]
    base = {key: value for key, value in base.items() if all(key in one and one[key] == value for one in others)}
    own: dict[str, object] = {"selected": selected} if selected else {}
    if (recipe["height"], recipe["width"]) != shape[:2]:
        by = {name: version for name, version in recipe["decoders"].items() if name in DISTRIBUTIONS}
        own |= {"height": recipe["height"], "width": recipe["width"], "resized_from": list(shape[:2])}
        own |= {"resize_filter": recipe["filter"], "resized_by": by}
        if earlier := {key: base.pop(key) for key in list(base) if key.startswith("resize")}:
            own["resized_before"] = earlier
    if "pixels" in base and ("resized_from" in own or base["pixels"] != recipe.get("pixels")):
        packed = base.pop("pixels")
        # Other forms of planes of yuv420 are as in a build.
        if "resized_from" in own or packed != "yuv420" or "pixels" not in recipe:
            own["unpacked_from"] = packed
    if "pixels" in recipe:
        own["pixels"] = recipe["pixels"]
    return {**base, **own}


def with_container(found: Json, recipe: Json) -> Json:
    """Return a recipe with the container, shard size and libhdf5 version of the conversion."""
    updated = {**found, "container": recipe["container"], "shard_size": recipe["shard_size"]}
    decoders = found.get("decoders", {})
    if isinstance(decoders, dict):
        updated["decoders"] = {name: version for name, version in decoders.items() if name != "libhdf5"}
        updated["decoders"] |= {name: version for name, version in recipe["decoders"].items() if name == "libhdf5"}
        if not updated["decoders"]:
            del updated["decoders"]
    return updated


def converted_source(manifests: Sequence[Manifest], selected: dict[str, object]) -> Json:
    """Return the source for store.json: that of a single unselected input, otherwise the digests of all inputs."""
    if len(manifests) == 1 and not selected:
        return manifests[0].source
    stores = [manifest.digest for manifest in manifests]
    digest = hexdigest(canonical({"stores": stores, "selected": selected}))
    return {"kind": "store", "digest": digest, "stores": stores}
