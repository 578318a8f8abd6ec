"""Finished stores as a source: their rows are what is read, and no picture is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.build.blocks import block_rows_for
from decodeonce.prep.convert import merge
from decodeonce.prep.convert.rows import StoreRows
from decodeonce.prep.convert.selection import Chosen
from decodeonce.prep.entry import Entry, RowMaker, name_bytes
from decodeonce.prep.sources.base import Source
from decodeonce.store.manifest import BOX_LABELS, Column, ImageClass
from decodeonce.store.select import Selection
from decodeonce.store.table import Reject, read_rejects

if TYPE_CHECKING:
    from decodeonce.prep.recipe import Recipe


class StoreSource(Source):
    """The rows of stores, one store after the other; or those selected, in another order, at another size.

    `stores` are path and manifest digest of each, `sort` is "class", "source" or None, `size` (height, width) or None.
    An entry's unit is its store's number, its place the row there, its mtime_ns the store's digest: so a store that was
    replaced is a source that changed.
    """

    kind = "store"

    def __init__(
        self,
        root: Path,
        *,
        stores: Sequence[Sequence[str]],
        selection: dict[str, Any],
        sort: str | None = None,
        size: Sequence[int] | None = None,
    ) -> None:
        super().__init__(root)
        self._facts: dict[str, Any] = {"stores": stores, "selection": selection, "sort": sort, "size": size}

    @cached_property
    def inputs(self) -> list[StoreRows]:
        """The stores, opened when first asked for."""
        return [StoreRows(Path(path), digest) for path, digest in self._facts["stores"]]

    @cached_property
    def chosen(self) -> Chosen:
        """Which rows these are."""
        facts = self._facts["selection"]
        selection = Selection(tuple(facts["classes"]), facts["source"], tuple(facts["rows"]))
        return Chosen(self.inputs, selection, self._facts["sort"])

    @cached_property
    def _box_classes(self) -> tuple[tuple[str, ...], list[list[int]]]:
        """The joined box classes, and each store's box labels as labels of these."""
        return merge.joined_box_classes([rows.manifest for rows in self.inputs])

    def facts(self) -> dict[str, Any]:
        """What `open_source` needs, beside kind and root, to make this source again."""
        return self._facts

    def classes(self) -> tuple[ImageClass, ...]:
        """The classes of all stores, also those of which no row is selected: labels keep their meaning."""
        return self.chosen.classes

    def entries(self) -> Iterator[Entry]:
        """The selected rows in their order; BuildError if there is none."""
        for rows in self.inputs:
            rows.check_files()
        found = False
        for unit, place in self.chosen:
            rows, found = self.inputs[unit], True
            sample = rows.sample(place)
            label, size = self.chosen.labels[unit][sample.label], rows.manifest.row_bytes
            stamp = int(rows.manifest.digest, 16) >> 1  # below 2^63, as a time is
            yield Entry(name_bytes(sample.source), label, size, stamp, unit=unit, place=place)
        if not found:
            raise BuildError(f"{self.root}: no row is selected; `prep ls` lists rows, classes and sources")

    def read(self, entry: Entry) -> bytes:
        """The bytes of a row; StoreError if they are not those that were written."""
        return self.inputs[entry.unit].read(entry.place)

    def columns(self) -> list[Column]:
        """The columns of the stores, which all have the same."""
        return list(self.inputs[0].manifest.columns)

    def column_values(self, column: Column, entries: Sequence[Entry]) -> NDArray[Any]:
        """What the rows have; boxes follow them to another size, box labels to the joined classes."""
        values = np.empty((len(entries), *column.shape), column.dtype)
        units, places = (np.array([getattr(entry, name) for entry in entries]) for name in ("unit", "place"))
        for unit in np.unique(units).tolist():
            rows = self.inputs[unit]
            found = rows.store.columns[column.name][places[units == unit]]
            if column.name == BOX_LABELS and rows.manifest.box_classes is not None:
                found = np.array([*self._box_classes[1][unit], -1])[found]  # -1, for no box, takes the last
            values[units == unit] = found
        is_boxes = column.name == "boxes" and column.shape[-1:] == (4,) and column.dtype == "<f4"
        if self._facts["size"] and is_boxes:
            height, width = np.divide(self._facts["size"], self.inputs[0].manifest.shape[:2])
            values = values * np.array([width, height, width, height])
        return values

    def manifest_facts(self, recipe: dict[str, Any], digest: str) -> dict[str, Any]:
        """The inputs' recipe and source, with what the conversion changes."""
        manifests, selected = [rows.manifest for rows in self.inputs], self.chosen.facts(recipe["shuffle_seed"])
        return {
            "recipe": merge.converted_recipe([m.recipe for m in manifests], manifests[0].shape, recipe, selected),
            "source": merge.converted_source(manifests, selected),
            "decoder_crashes": sum(manifest.decoder_crashes for manifest in manifests),
            **({} if manifests[0].box_classes is None else {"box_classes": list(self._box_classes[0])}),
        }

    def carried_rejects(self) -> Iterator[Reject]:
        """The lines of the stores' rejects.tsv; of those selected what was kept though odd, where its row is."""
        listed = [
            (unit, reject) for unit, rows in enumerate(self.inputs) for reject in read_rejects(rows.store.paths.rejects)
        ]
        if not self.chosen.whole:
            kept = {(unit, reject.source) for unit, reject in listed if reject.action == "kept"}
            here = {(entry.unit, entry.text) for entry in self.entries()} & kept if kept else set()
            listed = [(unit, reject) for unit, reject in listed if (unit, reject.source) in here]
        return (reject for _, reject in listed)

    def block_rows(self, count: int, row_bytes: int) -> int | None:
        """The input's, where it is what a build of `count` rows and the input's rejects takes: it counts them, too."""
        first = self.inputs[0].manifest
        if len(self.inputs) > 1 or first.count != count or first.row_bytes != row_bytes:
            return None
        most = count + sum(reject.action != "kept" for reject in read_rejects(self.inputs[0].store.paths.rejects))
        usual = range(block_rows_for(count, row_bytes), block_rows_for(most, row_bytes) + 1)
        return first.block_rows if first.block_rows in usual else None

    def row_maker(self, recipe: Recipe) -> RowMaker:
        """What resizes rows, or leaves them as they are."""
        from decodeonce.prep.convert.resize import StoredRowMaker  # Pillow, which listing does without

        return StoredRowMaker(self.inputs, recipe)
