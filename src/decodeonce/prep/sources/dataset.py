"""Any dataset with a length and numbered samples, such as those of PyTorch, torchvision and Hugging Face.

The dataset is named by the function or class that makes it. Every process imports and calls it, so nothing is pickled.
"""

from __future__ import annotations

import io
import json
import logging
import operator
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decodeonce.errors import BuildError, DecodeonceError, raise_file_system_failure
from decodeonce.formatting import counted
from decodeonce.prep.listing import Entry, LateFacts, Listing, Scan, Undecodable, hash_of, name_bytes, refuse_masked
from decodeonce.prep.recipe import Recipe
from decodeonce.prep.sources.class_folders import DATASET_PAGE
from decodeonce.prep.sources.classes import ClassList, check_no_duplicates
from decodeonce.prep.sources.files import size_problem
from decodeonce.prep.sources.labels import LabeledSource, NoLabels, check_unlabeled, number_columns
from decodeonce.prep.sources.parquet import class_names as names_in_schema
from decodeonce.prep.sources.parquet import column, columns_left, describe_labels, find_columns, has_texts
from decodeonce.prep.user_code import import_function, raised_text, reproduce, user_code
from decodeonce.remote import check_url
from decodeonce.store.layout import Paired
from decodeonce.store.manifest import ImageClass

MOST_SAMPLES = 1_000_000_000  # a plan of more would not fit into memory
FIRST_SAMPLES = 8  # the first one of them that can be read tells the names of columns and masks
TABLE_ROWS_AT_ONCE = 1 << 14  # of a Hugging Face dataset, whose listing reads no images
PALETTE_PNG = re.compile(rb"\x89PNG.{21}\x03", re.DOTALL)  # by its color type
EXPECTED_SAMPLE = "expected (image, label) or (image, label, {'column': numbers}); without labels, pass --no-labels"
EXPECTED_IMAGE = "expected a PIL image, a uint8 array (H, W), (H, W, 1) or (H, W, 3), or the bytes of an image file"
EXPECTED_DATASET = "expected an object with len() and [index], where dataset[0] is (image, label)"


class DatasetSample(NamedTuple):
    """A sample of a dataset.

    Attributes:
        data: The bytes of an image file; b"" if only the other values were read.
        label: The class number or name as text; None without a label, or if only the image was read.
        numbers: Values of columns by name; none if only the image was read.
        paired: The bytes of image files of masks and second images by name.
        is_text: Whether the label was a text.
    """

    data: bytes
    label: str | None = None
    numbers: Mapping[str, Any] = {}
    paired: Mapping[str, bytes] = {}
    is_text: bool = False


class IndexedDataset:
    """A dataset whose samples are (image, label) or (image, label, {"column": numbers, "mask": mask}).

    With `no_labels`, labels may be anything, and a sample may be its image alone.

    Attributes:
        class_names: The dataset's `classes`; None if it has none.
        fingerprint: A text that changes with the dataset; "" because only reading all samples would tell.
        description: What the dataset is, in words.
    """

    fingerprint = ""

    def __init__(self, dataset: Any, *, no_labels: bool = False) -> None:
        self._dataset = dataset
        self.no_labels = no_labels
        self.class_names = _texts(getattr(dataset, "classes", None))
        self.description = counted(len(dataset), "sample") + (" without labels" if no_labels else "")

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, index: int, wanted: Collection[str] | None) -> DatasetSample:
        """Return a sample with the wanted columns and masks, by default all of them.

        Raise Undecodable if it is not a sample, or whatever the dataset raises.
        """
        item = self._dataset[index]
        if self.no_labels and not (isinstance(item, tuple | list) and len(item) > 1):
            item = (item[0] if isinstance(item, tuple) else item, None)
        if not isinstance(item, tuple | list) or len(item) not in (2, 3):
            found = f"{type(item).__name__} of {len(item)}" if isinstance(item, tuple | list) else type(item).__name__
            raise Undecodable(f"found a {found}, {EXPECTED_SAMPLE}")
        image, label, others = (*item, {})[:3]
        if self.no_labels and isinstance(label, Mapping):
            self.description = f"{counted(len(self), 'sample')} without its dict; (image, None, dict) would keep it"
        if not isinstance(others, Mapping):
            raise Undecodable(f"third value is a {type(others).__name__}, expected {{'column': numbers}}")
        others = {str(name): value for name, value in others.items() if wanted is None or str(name) in wanted}
        data = encoded(image)
        paired = {name: mask for name, value in others.items() if (mask := _encoded_mask(name, value))}
        numbers = {name: value for name, value in others.items() if name not in paired}
        text = None if self.no_labels else _label_text(label)
        plain = json.loads(json.dumps(numbers, default=_plain))
        return DatasetSample(data, text, plain, paired, is_text=isinstance(label, str))


class HuggingFaceDataset:
    """A `datasets.Dataset`, read as Arrow tables, so that images stay encoded.

    Args:
        dataset: The dataset.
        name: Its name in messages.
        asked: The arguments of `parquet.find_columns`.
    """

    def __init__(self, dataset: Any, name: str, **asked: Any) -> None:
        if dataset.format["type"] == "custom":
            advice = "wrap the dataset in a class whose samples are (image, label), or remove the transform"
            raise BuildError(f"{name}: the dataset has a transform, which cannot be applied to a table; {advice}")
        self._chosen = find_columns(name, dataset.features.arrow_schema, **asked)
        image, _, label, numbers = self._chosen
        self._images = dataset.select_columns([image.partition(".")[0]]).with_format("arrow")
        self._others = dataset.select_columns([*filter(None, [label]), *numbers]).with_format("arrow")
        self.columns, self.no_labels = list(numbers), not label
        self.left = columns_left(dataset.features.arrow_schema, self._chosen)
        self.are_texts = has_texts(dataset.features.arrow_schema, label)
        self.class_names = names_in_schema(dataset.features.arrow_schema, label)
        self.fingerprint = str(dataset._fingerprint)
        self.description = f"{counted(len(dataset), 'sample')}, images from {image}, {describe_labels(label)}"

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int, _: object = None) -> DatasetSample:
        """Return the image of a sample; raise Undecodable without one, or what reading the image's file raises."""
        row = self._images[index : index + 1]
        data = column(row, self._chosen.image)[0].as_py()
        if data is None and self._chosen.path:
            path = column(row, self._chosen.path)[0].as_py()
            data = Path(path).read_bytes() if path else None
        return DatasetSample(encoded(data))

    def listed(self) -> Iterator[DatasetSample]:
        """Yield all samples without their images."""
        of_label = self._chosen.label
        for first in range(0, len(self), TABLE_ROWS_AT_ONCE):
            last = min(first + TABLE_ROWS_AT_ONCE, len(self))
            with user_code():
                rows = self._others[first:last]
                numbers = [column(rows, name).to_pylist() for name in self.columns]
                labels = column(rows, of_label).to_pylist() if of_label else [None] * (last - first)
            for label, *values in zip(labels, *numbers, strict=True):
                text = None if label is None else str(label)
                yield DatasetSample(b"", text, dict(zip(self.columns, values, strict=True)))


class DatasetSource(LabeledSource):
    """The samples of a dataset that a function or class returns.

    Every sample is read once, for its row. Its label and its numbers arrive with the row, so the classes are known only
    after all samples have been read. The first sample that can be read is also read to list the dataset, because it
    tells the names of columns and masks. Labels and columns of a Hugging Face dataset are in the listing. A sample is
    named by its index. If reading a sample raises an exception, the sample is rejected, unless memory, the file system
    or a permission is at fault.

    Args:
        root: Import path of the function or class, `package.module:function`. It is called without arguments. A
            folder before the import path, such as "code/package.module:function", is also searched for modules.
            Without one, the current folder is.
        classes: Class names in label order. Default None: those of the dataset, or they follow from the labels.
        column: Names of columns of numbers to keep. Default None: those of the first sample that can be read; none of
            a Hugging Face dataset.
        image_column: Name of a Hugging Face dataset's column of images; default "": the only one.
        label_column: Name of a Hugging Face dataset's column of labels; default "": the only one.
        no_labels: Whether to ignore labels: all samples are of one class; default False.
        length: Number of samples when the source was made; default None: it is made now.
        shapes: The shape of a value by name of its column, from the first sample that could be read at that time; None
            if it is not known.
        origin: Where `classes` came from, for messages.
        all_columns: Whether a sample with a column or mask that the first one lacks is an error; default False.
        fingerprint: The fingerprint of the Hugging Face dataset at that time.
        paired: The masks ("mask") and second images ("target:rgb") at that time.

    Raises:
        BuildError: If the dataset cannot be imported or made, is not one, or none of its first samples can be read.

    Example:
        >>> source = DatasetSource("mydata:digits")
        >>> [entry.text for entry in source.scan().entries]
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']
    """

    kind = "dataset"

    def __init__(  # noqa: PLR0913 - those from `length` on are for workers
        self,
        root: str | Path,
        *,
        classes: Sequence[str] | None = None,
        column: Sequence[str] | None = None,
        image_column: str = "",
        label_column: str = "",
        no_labels: bool = False,
        length: int | None = None,
        shapes: Mapping[str, Sequence[int] | None] | None = None,
        origin: str | None = None,
        all_columns: bool = False,
        fingerprint: str = "",
        paired: Sequence[str] = (),
    ) -> None:
        self._folder, self._name = Path(root).absolute().parent, Path(root).name
        check_unlabeled(no_labels, label_column=label_column)
        self._asked: dict[str, Any] = {"image_column": image_column, "label_column": label_column}
        self._unlabeled = {"no_labels": no_labels, "optional": classes is None}
        self._length, self._fingerprint = length, fingerprint
        self._options = {**self._asked, **({} if column is None else {"column": list(column)})}
        self._wanted = column
        self._all_columns = all_columns
        self.paired = tuple(map(Paired.parse, paired))
        self._is_late = length is not None and not fingerprint  # whether labels come with the rows of a plan
        self._of_palettes: list[str] = []  # masks that are palette images in the first sample
        self._late_facts: list[LateFacts] = []
        self._classes_alone: dict[str, tuple[int | None, str]] = {}
        if length is None:
            no_labels = self._dataset.no_labels
            self._length, self._fingerprint = len(self._dataset), self._dataset.fingerprint
            if self._length > MOST_SAMPLES:
                raise BuildError(f"{self._name}: len() is {self._length:,}, expected at most {MOST_SAMPLES:,}")
            shapes, found = self._of_first_sample()
            self._all_columns = column is None
            self.paired = tuple(one for one in found if column is None or one.name in column)
            paired = [one.name for one in self.paired]
            column = list(shapes) if column is None else [name for name in column if name not in paired]
            if classes is None and not no_labels and (names := self._dataset.class_names) is not None:
                if wrong := [name for name in names if not _is_name(name)]:
                    raise BuildError(f"the classes of {self._name}: {wrong[0]!r} is not valid Unicode; correct it")
                classes = ClassList(names, f"the classes of {self._name}")
                check_no_duplicates(classes)
        if classes is not None:
            classes = ClassList(classes, origin)
        super().__init__(Path(root), classes, column, no_labels=no_labels)
        for one in self._number_columns:
            shape = (shapes or {}).get(one.name)
            one.shape = None if shape is None else tuple(shape)
        self._asked |= super().options()
        self._wanted = [*self.column_names, *(one.name for one in self.paired)]

    @property
    def found(self) -> str:
        advice = "one channel of palette indexes; for a photo, return .convert('RGB')"
        return "; ".join([self._dataset.description, *(f"{name}: {advice}" for name in self._of_palettes)])

    def arguments(self) -> dict[str, Any]:
        origin = {} if self._requested is None else {"origin": self._requested.origin}
        shapes = {one.name: one.shape for one in self._number_columns}
        return {**self._own_facts(), **super().arguments(), **origin, "shapes": shapes}

    def _own_facts(self) -> dict[str, Any]:
        own = {"column": list(self.column_names), "length": self._length, "fingerprint": self._fingerprint}
        paired = {"paired": [one.text for one in self.paired]} if self.paired else {}
        return {**self._asked, **own, **paired, "all_columns": self._all_columns, "classes": self._requested}

    def fingerprint(self) -> Any:
        return self._own_facts() if self._fingerprint else None

    def options(self) -> dict[str, Any]:
        return {**super().options(), **{name: value for name, value in self._options.items() if value != ""}}

    def scan(self) -> Scan:
        """Return every sample in the order of the indices; from a Hugging Face dataset, with labels and values."""
        if not isinstance(self._dataset, HuggingFaceDataset):
            names = self._names or []
            known = (str(hash_of(name_bytes("\t".join(names)))),)  # instead of labels, which are not known yet
            indices = range(len(self._dataset))
            entries = (Entry(b"%d" % index, 0, 0, 0, place=index, digested=known) for index in indices)
            return Scan(entries, tuple(map(ImageClass, names)), late=True)
        seen: dict[str, str] = {}
        for index, sample in enumerate(self._dataset.listed()):
            if sample.label:
                seen.setdefault(sample.label, self._where(index))
        self.are_texts = self._dataset.are_texts
        self._learn(seen)
        self._left = self._dataset.left
        return self._scanned(self._entries(self._dataset.listed()))

    def _entries(self, samples: Iterable[DatasetSample]) -> Iterator[Entry]:
        version = hash_of(self._fingerprint.encode()) >> 1  # fits int64; takes the place of a file's mtime
        for index, sample in enumerate(samples):
            number, problem = self._class_of(sample.label)
            found = map(sample.numbers.get, self.column_names)
            values = () if problem else self._checked(found, self._where(index))
            yield Entry(b"%d" % index, number, 0, version, problem, place=index, values=values)

    def _where(self, index: int) -> str:
        return f"{self._name}[{index}]"

    def read(self, entry: Entry) -> list[bytes]:
        """Return the image and what is paired with it. For a plan, keep the label and the values for `late_facts`."""
        with user_code():
            sample = self._sample(entry.place)
        if self._is_late:
            label, where = sample.label or "", self._where(entry.place)
            if label not in self._classes_alone:
                self._classes_alone[label] = self._class_alone(label, where)
                if sample.is_text:
                    self._check_text(label, where)
            if problem := self._classes_alone[label][1]:
                self._late_facts.append((entry.place, label, None))
                raise Undecodable(problem)
            values = self._checked(map(sample.numbers.get, self.column_names), where)
            self._late_facts.append((entry.place, label, [*values]))
        return [sample.data, *(sample.paired[one.name] for one in self.paired)]

    def _check_text(self, label: str, where: str) -> None:
        """Raise BuildError if a text is the name of one of the given classes, and the number of another."""
        given = self._given or []
        if label not in given or not label.isdecimal():
            return
        if str(number := given.index(label)) != (label.lstrip("0") or "0"):
            found = f"label {label!r} is class {number} by name, and class {label} by number"
            raise BuildError(f"{where}: {found}; return class numbers, or names that are not numbers")

    def row_maker(self, recipe: Recipe) -> None:
        """Import the dataset, so that no row is blamed if this ends the process; return None as other sources."""
        len(self._dataset)

    def late_facts(self) -> list[LateFacts]:
        found, self._late_facts = self._late_facts, []
        return found

    def label_of(self, entry: Entry) -> int:
        if not self._is_late:
            return entry.label
        place, label, _ = self._late_facts[-1]
        if (number := self._classes_alone[label][0]) is None:
            what = f"a map gets the class of its image, but that of label {label!r:.80} depends on all other labels"
            advice = "build with --classes FILE, where names are not numbers; if OUT exists, remove it first"
            raise BuildError(f"{self._where(place)}: {what}; {advice}")
        return number

    def with_late_facts(self, planned: Listing, facts: Iterable[LateFacts]) -> Listing:
        if not self._is_late:
            return planned
        # What each fact says, in the order of the facts. Objects of one image have equal facts.
        places, codes, numbers = array("q"), array("q"), number_columns(self.column_names)
        code_of, first = dict[str, int](), dict[str, int]()  # the code and the first place of each label
        unknown = np.ones(self._length or 0, np.bool_)  # whether the label of a sample is
        for place, label, values in facts:
            unknown[place] = False
            if label:
                first[label] = min(place, first.get(label, place))
            if values is not None:
                places.append(place)
                codes.append(code_of.setdefault(label, len(code_of)))
                for collected, value in zip(numbers, values, strict=True):
                    collected.append(value)
        try:
            seen = {label: self._where(first[label]) for label in sorted(first, key=first.__getitem__)}
            self._learn(seen)
            if wrong := [label for label in self._given or () if label in seen and self._class_of(label)[1]]:
                raise BuildError(f"{seen[wrong[0]]}: {self._class_of(wrong[0])[1]}, because all labels are numbers")
        except BuildError as error:
            raise BuildError(f"{error}; then remove OUT and build again") from None
        self._used = {self._class_of(label)[0] for label in code_of}
        for warning in [*self._warnings(len(np.unique(places))), *self._unknown_labels(unknown)]:
            logging.getLogger("decodeonce").warning("%s: %s", self._name, warning)
        # The row of a sample without facts was rejected. It gets those of any other sample, and is in no store.
        fact_of = np.zeros(self._length or 0, np.int64)
        fact_of[places] = np.arange(len(places))
        of_rows = fact_of[planned.records["place"]]
        records, columns = planned.records.copy(), [collected.to_column() for collected in numbers]
        records["label"] = np.array([self._class_of(label)[0] for label in code_of])[np.array(codes)[of_rows]]
        return replace(
            planned,
            records=records,
            numbers={**planned.numbers, **{one.file: values[of_rows] for one, values in columns}},
            columns=tuple(one for one, _ in columns),
            classes=tuple(map(ImageClass, self._names or ())),
        )

    def _unknown_labels(self, unknown: NDArray[np.bool_]) -> list[str]:
        """Return a warning if classes that follow from the labels may lack some, because samples were never read."""
        if self._given is not None or self.no_labels or not unknown.any():
            return []
        first = self._where(int(unknown.argmax()))
        what = f"the labels of {counted(int(unknown.sum()), 'sample')} are unknown (first {first}, see rejects.tsv)"
        return [f"{what}; if only these have a label, it is not among the classes; --classes FILE lists all classes"]

    def find(self, names: Collection[bytes]) -> Iterator[Entry]:
        assert self._length is not None
        for name in sorted(names):
            if name.isdigit() and int(name) < self._length:
                yield Entry(name, 0, 0, 0, place=int(name))

    def _sample(self, index: int) -> DatasetSample:
        """Return a sample; raise Undecodable if the dataset raises an exception that may be the sample's fault."""
        try:
            sample = self._dataset.read(index, None if self._all_columns else self._wanted)
            problem = size_problem(len(sample.data))
        except (DecodeonceError, Undecodable, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # a user's dataset may raise anything, which must not end the build
            if isinstance(error, OSError):
                raise_file_system_failure(error, self._where(index))
            raise Undecodable(raised_text(error)) from None
        expected = {*sample.numbers, *sample.paired} if self._wanted is None else {*self._wanted}
        if others := sorted({*sample.numbers, *sample.paired} - expected):
            advice = "give every sample the same names, or choose columns with --column NAME"
            raise BuildError(f"{self._where(index)}: has {others[0]!r:.80}, which the first sample lacks; {advice}")
        if missing := [one.name for one in self.paired if one.name not in sample.paired]:
            problem = f"{missing[0]} is missing, or is not an image as in the first sample"
        elif colors := [one.name for one in self.paired if one.channels == 1 and sample.paired[one.name][:2] == b"P6"]:
            advice = "for photos, return .convert('RGB') in all samples, and for masks, one channel"
            problem = f"{colors[0]} has three channels, but one in the first sample; {advice}"
        if problem:
            raise Undecodable(problem)
        return sample

    def _of_first_sample(self) -> tuple[dict[str, Sequence[int] | None], Sequence[Paired]]:
        """Return the shapes of columns, masks and second images of the first sample that can be read; none if empty."""
        if isinstance(self._dataset, HuggingFaceDataset):
            return dict.fromkeys(self._dataset.columns), []
        problem, first = "", range(min(len(self._dataset), FIRST_SAMPLES))
        for index in first:
            try:
                with user_code():
                    sample = self._sample(index)
            except Undecodable as error:
                problem = problem or f"{self._where(index)}: {error}"
                continue
            try:
                paired = [Paired(name, 3 if data.startswith(b"P6") else 1) for name, data in sample.paired.items()]
            except ValueError as error:
                advice = "rename it, or name the others with --column"
                raise BuildError(f"{self._where(index)}: {error}; {advice}") from None
            self._of_palettes = [name for name, data in sample.paired.items() if PALETTE_PNG.match(data)]
            wanted = sample.numbers if self._wanted is None else self._wanted
            columns = number_columns([name for name in wanted if name not in sample.paired])
            for one in columns:
                one.check(sample.numbers.get(one.name), self._where(index))
            return {one.name: one.shape for one in columns}, paired
        if problem:
            expected = f"expected a sample that names the columns and masks among the first {len(first)}"
            raise BuildError(f"{problem}; {expected}; correct the sample, or remove it from the dataset")
        return {}, []

    @cached_property
    def _dataset(self) -> IndexedDataset | HuggingFaceDataset:
        """The dataset, which is made on first use."""
        function = import_function(self._name, "", self._folder)
        try:
            with user_code():
                dataset = self._opened(function())
                length = len(dataset)
        except DecodeonceError:
            raise
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            if isinstance(error, OSError):
                raise_file_system_failure(error, self._name)
            module, _, called = self._name.partition(":")
            advice = reproduce(f"import {module}; {module}.{called}()", self._folder)
            if isinstance(error, TypeError) and "required" in str(error):
                advice = f"write a function that calls it with its arguments ({DATASET_PAGE})"
            raise BuildError(f"{self._name}: calling it raised {raised_text(error)}; {advice}") from error
        if self._length is not None and (length, dataset.fingerprint) != (self._length, self._fingerprint):
            now, then = f"{length} samples {dataset.fingerprint}", f"{self._length} samples {self._fingerprint}"
            advice = "pass a seed to random splits; if its data changed, remove OUT and build again"
            raise BuildError(
                f"{self._name}: changed since the plan was made (now {now.strip()}; then {then.strip()}); it must be "
                f"the same in every process: {advice}"
            )
        return dataset

    def _opened(self, dataset: Any) -> IndexedDataset | HuggingFaceDataset:
        if isinstance(dataset, Mapping):
            splits = ", ".join(map(str, dataset))
            raise BuildError(f"{self._name}: returned a dictionary of {splits}; return one of its datasets")
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise BuildError(f"{self._name}: returned a {type(dataset).__name__}; {EXPECTED_DATASET}")
        if hasattr(dataset, "features") and hasattr(dataset, "with_format"):
            asked = {"image": self._asked["image_column"], "label": self._asked["label_column"]}
            return HuggingFaceDataset(dataset, self._name, **asked, **self._unlabeled, numbers=self._wanted or ())
        if given := [name for name in ("image_column", "label_column") if self._asked[name]]:
            flag = given[0].replace("_", "-")
            raise BuildError(
                f"{self._name}: --{flag} is for Hugging Face datasets, and this is a {type(dataset).__name__}"
            )
        return IndexedDataset(dataset, no_labels=self._unlabeled["no_labels"])


def open_dataset(
    src: str | Path,
    *,
    image_column: Annotated[
        str, "Read images from this column of a Hugging Face dataset. (default: the only one)", "NAME"
    ] = "",
    label_column: Annotated[
        str, "Read labels from this column of a Hugging Face dataset. (default: the only one)", "NAME"
    ] = "",
    column: Annotated[
        list[str] | None,
        "Keep this column of numbers. Repeat the flag for more columns. "
        "(default: those of the first readable sample; for a Hugging Face dataset, none)",
        "NAME",
    ] = None,
    no_labels: NoLabels = False,
    classes: Sequence[str] | None = None,
    follow_links: bool = False,
) -> DatasetSource:
    """Read a PyTorch, torchvision or Hugging Face dataset. SRC is a function, package.module:function, that returns it.

    Args:
        src: Import path of a function or class that returns the dataset, as for `DatasetSource`.
        image_column: Name of a Hugging Face dataset's column of images; default "": the only one.
        label_column: Name of a Hugging Face dataset's column of labels; default "": the only one.
        column: Names of columns of numbers to keep. Default None: those of the first readable sample; for a Hugging
            Face dataset, none. If a Hugging Face dataset has no other columns but the images, and none looks like
            labels, all samples are of one class.
        no_labels: Whether to ignore labels: all samples are of one class; default False. A sample may then be its image
            alone.
        classes: Class names in label order. Default None: those of the dataset, or they follow from the labels.
        follow_links: Has no effect, because the dataset reads its own files.

    Raises:
        BuildError: If the dataset cannot be imported or made, or is not one.

    Example:
        >>> source = open_dataset("mydata:digits")  # the function `digits` of ./mydata.py
        >>> build(source, Path("digits.store"), Recipe(height=8, width=8)).count
        10
    """
    check_url(str(src))
    return DatasetSource(
        src, classes=classes, column=column, image_column=image_column, label_column=label_column, no_labels=no_labels
    )


def encoded(image: Any) -> bytes:
    """Return the bytes of an image file: the given ones, or the pixels of an image or array as PPM or PGM.

    Raises:
        Undecodable: If it is none of these, or cannot be converted.
    """
    from PIL import Image

    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, Image.Image):
        return _netpbm(_pixels(image))
    refuse_masked("image", image)
    is_bytes = isinstance(image, np.ndarray) and image.dtype == np.uint8
    if is_bytes and image.ndim > 1 and image.shape[2:] in ((), (1,), (3,)):
        return _netpbm(image)
    is_array = hasattr(image, "dtype") and hasattr(image, "shape")
    found = f"{image.dtype} {image.shape}" if is_array else type(image).__name__
    channels_first = is_array and image.shape[:1] in ((1,), (3,))
    advice = "; return image.permute(1, 2, 0), or for NumPy image.transpose(1, 2, 0)" if channels_first else ""
    advice += ", as 8 bits" if advice and "uint8" not in str(image.dtype) else ""
    raise Undecodable(f"image is {found}, {EXPECTED_IMAGE}{advice}")


def _encoded_mask(name: str, value: Any) -> bytes:
    """Return a mask or second image as a PGM, PPM or PNG file; b"" if the value is a number or a list of numbers."""
    from PIL import Image

    if isinstance(value, bytes | bytearray):
        raise Undecodable(f"{name} is {type(value).__name__}; a paired image must be a PIL image or an array")
    if isinstance(value, Image.Image) and value.mode in ("1", "P"):  # a mask has its values, a photo its colors
        if value.mode == "P":  # give all indexes a color, because Pillow 13 clips those without one
            value, palette = value.copy(), value.palette.mode
            colors = value.getpalette(palette)
            value.putpalette(colors + [0] * (256 * len(palette) - len(colors)), palette)
        value.save(file := io.BytesIO(), "PNG", compress_level=0)  # it is read in this process
        return file.getvalue()
    if isinstance(value, Image.Image):
        deep = value.mode[0] in "IF"  # to RGB, Pillow would clip these to white
        pixels = np.asarray(value if deep or value.mode == "L" else value.convert("RGB"))
    elif getattr(value, "ndim", 0) < 2:
        return b""
    else:
        refuse_masked(name, value)
        pixels = np.asarray(value)
    if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (3,)):
        expected = "expected a PIL image of 8 bits, or a uint8 array (h, w) or (h, w, 3)"
        raise Undecodable(f"{name} is {pixels.dtype} {pixels.shape}, {expected}")
    return _netpbm(pixels)


def _pixels(image: Any) -> NDArray[Any]:
    """Return the pixels of a PIL image: 8 or 16 bits of gray, or RGB."""
    from decodeonce.prep.pixels.unusual import REJECTED_MODES

    if image.mode == "I" or image.mode in REJECTED_MODES:
        raise Undecodable(REJECTED_MODES.get(image.mode, "32-bit pixels, of no known range"))
    kept = image.mode == "L" or image.mode.startswith("I;16")
    return np.asarray(image if kept else image.convert("RGB"))


def _netpbm(pixels: NDArray[Any]) -> bytes:
    """Return 8-bit gray, 16-bit gray or RGB pixels as a PGM or PPM file."""
    kind, deep = "6" if pixels.shape[2:] == (3,) else "5", pixels.dtype != np.uint8
    header = f"P{kind}\n{pixels.shape[1]} {pixels.shape[0]}\n{65535 if deep else 255}\n"
    return header.encode() + (pixels.astype(">u2") if deep else pixels).tobytes()


def _label_text(label: object) -> str | None:
    """Return a label as LabeledSource takes it; raise Undecodable if it is neither a number nor a text."""
    refuse_masked("label", label)
    if label is None or isinstance(label, str):
        if not _is_name(label or ""):
            raise Undecodable(f"label is {label!r:.80}, which is not valid Unicode")
        return label
    try:
        return str(operator.index(label))  # type: ignore[arg-type]
    except TypeError:
        expected = "expected a class number or name; return other numbers as (image, None, {'column': numbers})"
        raise Undecodable(f"label is {label!r:.80}, {expected}, with --no-labels") from None


def _texts(names: object) -> list[str] | None:
    """Return the class names of a dataset, or None. torchvision's ImageNet has a tuple of words for each class."""
    if not isinstance(names, list | tuple) or not names:
        return None
    texts = [", ".join(map(str, name)) if isinstance(name, tuple) else name for name in names]
    return texts if all(isinstance(text, str) for text in texts) else None


def _is_name(text: str) -> bool:
    """Whether a text is one that stores can hold as a name. A lone surrogate is not, unless it stands for a byte."""
    try:
        name_bytes(text)
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any) -> Any:
    """Return an array, tensor or number of NumPy or torch as JSON can hold it; other objects as text."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)
