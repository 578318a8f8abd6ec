"""A source whose samples are the rows of finished stores, so no image is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.building.blocks import block_rows_for
from decodeonce.prep.convert import merge
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.convert.selection import SelectedRows
from decodeonce.prep.entry import Entry, RowMaker, name_bytes
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.base import DecodedRows, Source
from decodeonce.store.manifest import BOX_LABELS, Column, ImageClass
from decodeonce.store.select import Selection
from decodeonce.store.table import Reject, read_rejects


class StoreSource(Source):
    """The rows of finished stores, one store after the other unless they are sorted.

    An entry's unit is the index of its store, and its place is the row in that store. Its mtime_ns is the digest of
    the store, so a store that was replaced counts as a changed source.

    Args:
        root: Path of the first store.
        stores: (path, manifest digest) of each store.
        selection: The fields of a `Selection`.
        sort: "class", "source", or None to keep the order.
        size: (height, width) in pixels of the new rows, or None to keep the size.
    """

    kind = "store"

    def __init__(
        self,
        root: Path,
        *,
        stores: Sequence[Sequence[str]],
        selection: dict[str, object],
        sort: str | None = None,
        size: Sequence[int] | None = None,
    ) -> None:
        super().__init__(root)
        self._facts: dict[str, Any] = {"stores": stores, "selection": selection, "sort": sort, "size": size}

    @cached_property
    def inputs(self) -> list[StoreRows]:
        """The stores, opened on first use."""
        return [StoreRows(Path(path), digest) for path, digest in self._facts["stores"]]

    @cached_property
    def selected_rows(self) -> SelectedRows:
        """The rows to convert."""
        facts = self._facts["selection"]
        selection = Selection(tuple(facts["classes"]), facts["source"], tuple(facts["rows"]))
        return SelectedRows(self.inputs, selection, self._facts["sort"])

    @cached_property
    def _box_classes(self) -> tuple[tuple[str, ...], list[list[int]]]:
        return merge.merged_box_classes([rows.manifest for rows in self.inputs])

    def facts(self) -> dict[str, object]:
        """Return the keyword arguments from which `open_source` makes this source again."""
        return self._facts

    def classes(self) -> tuple[ImageClass, ...]:
        """Return the classes of all stores, also those without selected rows, so that labels keep their meaning."""
        return self.selected_rows.classes

    def entries(self) -> Iterator[Entry]:
        """Yield the selected rows in their order; raise BuildError if there are none."""
        for rows in self.inputs:
            rows.check_files()
        found = False
        for unit, place in self.selected_rows:
            rows, found = self.inputs[unit], True
            sample = rows.sample(place)
            label, size = self.selected_rows.labels[unit][sample.label], rows.manifest.row_bytes
            stamp = int(rows.manifest.digest, 16) >> 1  # below 2^63, the limit of mtime_ns
            yield Entry(name_bytes(sample.source), label, size, stamp, unit=unit, place=place)
        if not found:
            raise BuildError(f"{self.root}: no row is selected; `prep ls` lists rows, classes and sources")

    def read(self, entry: Entry) -> bytes:
        """Return the bytes of a row; raise StoreError if they do not match its checksum."""
        return self.inputs[entry.unit].read(entry.place)

    def columns(self) -> list[Column]:
        """Return the columns, which are the same in all stores."""
        return list(self.inputs[0].manifest.columns)

    def column_values(self, column: Column, rows: DecodedRows) -> NDArray[np.generic]:
        """Return the values of the rows. Boxes are scaled to the new size; box labels refer to the merged classes."""
        values = np.empty((len(rows.samples), *column.shape), column.dtype)
        units, places = rows.samples["unit"], rows.samples["place"]
        for unit in np.unique(units).tolist():
            stored = self.inputs[unit]
            found = stored.store.columns[column.name][places[units == unit]]
            if column.name == BOX_LABELS and stored.manifest.box_classes is not None:
                # The label -1 means no box; as an index it takes the -1 that is appended here.
                found = np.array([*self._box_classes[1][unit], -1])[found]
            values[units == unit] = found
        is_boxes = column.name == "boxes" and column.shape[-1:] == (4,) and column.dtype == "<f4"
        if self._facts["size"] and is_boxes:
            height, width = np.divide(self._facts["size"], self.inputs[0].manifest.shape[:2])
            values = values * np.array([width, height, width, height])
        return values

    def manifest_facts(self, recipe: dict[str, Any], digest: str) -> dict[str, object]:
        """Return the recipe and source of the inputs with the changes of the conversion."""
        manifests, selected = [rows.manifest for rows in self.inputs], self.selected_rows.facts(recipe["shuffle_seed"])
        return {
            "recipe": merge.converted_recipe([m.recipe for m in manifests], manifests[0].shape, recipe, selected),
            "source": merge.converted_source(manifests, selected),
            "decoder_crashes": sum(manifest.decoder_crashes for manifest in manifests),
            **({} if manifests[0].box_classes is None else {"box_classes": list(self._box_classes[0])}),
        }

    def carried_rejects(self) -> Iterator[Reject]:
        """Return the lines of the inputs' rejects.tsv; with a selection, only the "kept" lines of selected rows."""
        listed = [
            (unit, reject) for unit, rows in enumerate(self.inputs) for reject in read_rejects(rows.store.paths.rejects)
        ]
        if not self.selected_rows.has_all_rows:
            kept = {(unit, reject.source) for unit, reject in listed if reject.action == "kept"}
            selected = {(entry.unit, entry.text) for entry in self.entries()} & kept if kept else set()
            listed = [(unit, reject) for unit, reject in listed if (unit, reject.source) in selected]
        return (reject for _, reject in listed)

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

    def row_maker(self, recipe: Recipe) -> RowMaker:
        """Return what makes the new rows, resized if needed."""
        from decodeonce.prep.convert.resize import StoredRowMaker  # imports Pillow, which a listing does not need

        return StoredRowMaker(self.inputs, recipe)
