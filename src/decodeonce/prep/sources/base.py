"""The base class of sources."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError
from decodeonce.prep.listing import Entry, LateFacts, Listing, RowMaker, Scan
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.files import Links, named_entries, read_file
from decodeonce.prep.sources.holders import SourceFiles
from decodeonce.store.layout import Json, Paired
from decodeonce.store.manifest import Column


@dataclass(frozen=True)
class DecodedRows:
    """Some rows of a decoded store, from which a source computes columns.

    Args:
        recipe: The recipe of the store.
        samples: The `unit` and `place` of the rows' entries.
        facts: `width` and `height` of the source images in pixels, and `turn` as in Row.
        numbers: The values of `Entry.numbers` by name, each (n, ...).

    Example:
        >>> class SizedFolder(FolderSource):
        ...     kind = "sized-folder"
        ...
        ...     def columns(self):
        ...         return [Column("width", "width.npy", "<i4", ())]
        ...
        ...     def column_values(self, column, rows):
        ...         return rows.facts["width"]
        >>> SizedFolder(Path("imagenet/val")).columns()[0].name
        'width'
    """

    recipe: Recipe
    samples: NDArray[np.void]
    facts: NDArray[np.void]
    numbers: Mapping[str, np.ndarray]


class Source(ABC):
    """A kind of input that lists samples once, and then reads the encoded bytes of one sample at a time.

    To add a kind, write a subclass and register it. :doc:`/contribute/sources` shows how.

    The process that plans a build makes the source, usually with an opener such as `open_folder`, and calls `scan`.
    Each worker process makes its own copy with the class that is registered for `kind`, as `cls(root, **arguments)`. It
    calls `read` for its samples, from one thread unless `root` is a URL. The process that finishes the store makes a
    copy in the same way.

    Only `scan` and `arguments` are abstract. The other methods have defaults that suit most sources.

    Every method may raise `BuildError` if the user must change something first, and `Stopped` if the same command may
    succeed later, for example after a file server is back. `read` may also raise `Undecodable`. An `OSError`
    becomes `Stopped` if its cause may pass, such as an absent file server, and `BuildError` otherwise.

    Args:
        root: The folder or file that entry names are relative to.

    Attributes:
        kind: Name of the kind in `prep build KIND`, in plans and in store.json.
        unit_name: Name of a unit that holds many samples and can only be read whole, such as "gzip stream" or "row
            group"; default "" if samples can be read one by one. With units, rows keep the source's order unless a
            shuffle seed is given, a seed permutes whole units, and one worker reads all rows of a unit.
        column_names: Names of the columns of numbers; default (). Every entry without a problem has one value for each
            of them in `Entry.values`.
        paired: Masks and second images that `read` returns after each image; default ().
        links: Which links `read` and `find` may follow, if each sample is a file below `root`; default None: `read`
            follows all links, and `find` lists the source.
        files: The files that hold the samples, if they hold many each; then `unit` of an entry is the index of its
            file, and by default, `place` is the offset of the image. Default None: each sample is a file, or neither.

    Example:
        >>> import os
        >>> class FlatSource(Source):
        ...     kind = "flat"
        ...
        ...     def arguments(self):
        ...         return {}
        ...
        ...     def scan(self):
        ...         names = sorted(os.listdir(os.fsencode(self.root)))
        ...         return Scan((file_entry(self.root, name, label=0) for name in names), [ImageClass("all")])
        >>> source = FlatSource(Path("imagenet/val/n01440764"))
        >>> [entry.text for entry in source.scan().entries]
        ['n01440764_0.JPEG', 'n01440764_1.JPEG', 'n01440764_2.JPEG', 'n01440764_3.JPEG']
    """

    kind: str
    unit_name: str = ""
    column_names: tuple[str, ...] = ()
    paired: tuple[Paired, ...] = ()
    links: Links | None = None
    files: SourceFiles | None = None

    def __init__(self, root: Path) -> None:
        self.root = root

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        gone = {"warnings", "read_all", "facts", "read_unit", "reads_ahead", "carried_rejects"}
        if "scan" not in vars(cls):  # with it, these may be the class's own
            gone |= {"entries", "classes", "holder"}
        if found := sorted(gone & vars(cls).keys()):
            what = f'{cls.__name__} is a source for an earlier decodeonce: it has "{found[0]}"'
            raise TypeError(f"{what}; docs/contribute/sources.md says what replaces it")

    @property
    def top(self) -> Path:
        """The folder or file that is listed; default the first of `files`, or `root`.

        A build refuses to write its store inside it.
        """
        return self.files.first if self.files else self.root

    @property
    def keeps_order(self) -> bool:
        """Whether rows keep the source's order unless a shuffle seed is given. By default, only with units."""
        return bool(self.unit_name)

    @property
    def found(self) -> str:
        """A phrase that describes what was recognized at SRC, shown when a build starts."""
        return self.kind

    def listing(self) -> Listing:
        """Return all samples as arrays, from a scan."""
        return Listing.of(self.scan(), self.column_names)

    @abstractmethod
    def scan(self) -> Scan:
        """Return every sample, the classes and warnings.

        Called for a plan, and again to compare the source with an existing plan or store. A sample that cannot become
        a row is an entry with a `problem`, which rejects.tsv lists. `Entry.name` identifies the sample in samples.tsv.
        `Entry.unit` and `Entry.place` are for the source's own use in `read`.

        Raises:
            BuildError: If the source cannot be used as it is, for example if a folder may not be read.
            Stopped: If the file system fails.
        """

    @abstractmethod
    def arguments(self) -> Json:
        """Return the keyword arguments that make this source again from its class and root.

        Called after a scan, so the result may include what the listing found, such as file sizes. It must be
        JSON-serializable; dicts come back sorted by their keys. `cls(root, **arguments)` must not access any file,
        because every worker of every task calls it.
        """

    def fingerprint(self) -> object:
        """Return a value that changes whenever the listing would change; default None if only listing can tell.

        Called before and after a scan, with the same result, so it must not list the source. It must be
        JSON-serializable. If a plan exists with an equal fingerprint, that plan is used, and the source is not listed
        again.
        """
        return None

    def read(self, entry: Entry) -> list[bytes]:
        """Return the encoded image of one sample, followed by those of `paired`.

        By default, read `entry.size` bytes at `entry.place` of a file in `files`; without these, the file `entry.name`.
        Called in worker processes for entries without a problem, in any order. Check that the file has not changed
        since it was listed, as `read_file` and `SourceFiles` do: a store must match its plan.

        Args:
            entry: A sample from `scan`, restored from the plan.

        Raises:
            Stopped: If the file system fails, so that the same command may succeed later.
            BuildError: If the user must act first: the file is missing, has changed since it was listed, or may not
                be read.
            Undecodable: If these bytes alone are damaged. The text is the reason in rejects.tsv.
        """
        if self.files is not None:
            return [self.files.read(entry.unit, entry.place, entry.size)]
        return [read_file(self.root, entry, self.links)]

    def read_checked(self, entry: Entry) -> list[bytes]:
        """Return what `read` returns; raise BuildError if it is not a list."""
        if isinstance(found := self.read(entry), list):
            return found
        what = f"read() of {type(self).__name__} returned {type(found).__name__}"
        raise BuildError(f"{entry.text}: {what}, expected a list of bytes; see docs/contribute/sources.md")

    def read_soon(self, entry: Entry) -> None:
        """Start to read what `read(entry)` will need, while other samples are decoded; default: do nothing.

        Called below a URL, if there are units, with a sample of the next unit. `read` is not called meanwhile.
        """
        return None

    def options(self) -> Json:
        """Return the arguments of the opener that `prep repair` needs besides SRC, without paths; default none.

        They are recorded in store.json, must be JSON-serializable, and must not depend on the machine.
        """
        return {}

    def find(self, names: Collection[bytes]) -> Iterable[Entry]:
        """Return the entries with these names, for `prep repair`; without `links`, from a listing of the whole source.

        Override it if samples can be found without a listing. Labels and values are not needed.
        """
        if self.links is not None:
            return named_entries(self.root, names, self.links)
        return (entry for entry in self.scan().entries if entry.name in names)

    def columns(self) -> list[Column]:
        """Return further columns of the store whose values come from `column_values`; default none."""
        return []

    def column_values(self, column: Column, rows: DecodedRows) -> np.ndarray:
        """Return the values of one of `columns` for these rows.

        Returns:
            An array of shape `(n, *column.shape)`. It is stored with the column's dtype.
        """
        raise NotImplementedError

    def manifest_facts(self, recipe: Json, digest: str) -> Json:
        """Return the keys that store.json gets from the source, at least `recipe` and `source`.

        Args:
            recipe: The recipe of the build, including decoder versions.
            digest: The digest of the listing.
        """
        columns = {"columns": [*self.column_names]} if self.column_names else {}
        options = {"options": found} if (found := self.options()) else {}
        return {"recipe": {**recipe, **columns}, "source": {"kind": self.kind, "digest": digest, **options}}

    def block_rows(self, count: int, row_bytes: int) -> int | None:
        """Return the number of rows per block, or None (the default) to let the build choose."""
        return None

    def row_maker(self, recipe: Recipe) -> RowMaker | None:
        """Return what turns the bytes from `read` into rows, or None (the default) if they are encoded images."""
        return None

    def late_facts(self) -> list[LateFacts]:
        """Return the facts of the samples that were read since the last call, if the scan is `late`; default none."""
        return []

    def with_late_facts(self, planned: Listing, facts: Iterable[LateFacts]) -> Listing:
        """Return the planned samples with the labels, values, columns and classes that follow from all late facts.

        By default, the plan has everything.
        """
        return planned

    def label_of(self, entry: Entry) -> int:
        """Return the label for a map of the sample that was read last; default: the planned one."""
        return entry.label


class SourceWrapper(Source):
    """A source that changes the scan of another one: by default, its methods are those of the other source.

    Args:
        source: The other source.
        suffix: What to add to its kind.
    """

    def __init__(self, source: Source, suffix: str) -> None:
        super().__init__(source.root)
        self.kind, self.unit_name = source.kind + suffix, source.unit_name
        self.column_names, self.paired = source.column_names, source.paired
        self.source = source

    @property
    def top(self) -> Path:
        return self.source.top

    @property
    def keeps_order(self) -> bool:
        return self.source.keeps_order

    def read(self, entry: Entry) -> list[bytes]:
        return self.source.read_checked(entry)

    def read_soon(self, entry: Entry) -> None:
        self.source.read_soon(entry)

    def options(self) -> Json:
        return self.source.options()

    def columns(self) -> list[Column]:
        return self.source.columns()

    def column_values(self, column: Column, rows: DecodedRows) -> np.ndarray:
        return self.source.column_values(column, rows)

    def row_maker(self, recipe: Recipe) -> RowMaker | None:
        return self.source.row_maker(recipe)

    def late_facts(self) -> list[LateFacts]:
        return self.source.late_facts()

    def with_late_facts(self, planned: Listing, facts: Iterable[LateFacts]) -> Listing:
        return self.source.with_late_facts(planned, facts)

    def label_of(self, entry: Entry) -> int:
        return self.source.label_of(entry)


class Notes:
    """Counts what was noticed, with the first place of each."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str]] = {}

    def note(self, what: str, where: str, times: int = 1) -> None:
        before, first = self._seen.get(what, (0, where))
        self._seen[what] = (before + times, first)

    def texts(self) -> list[str]:
        return [f"{what}: {times} (first {first})" for what, (times, first) in self._seen.items()]
