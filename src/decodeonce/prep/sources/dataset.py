"""Any dataset with a length and numbered samples, such as those of PyTorch, torchvision and Hugging Face.

The dataset is named by the function or class that makes it. Every process imports and calls it, so nothing is pickled.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from decodeonce.errors import BuildError, DecodeonceError, Stopped, raise_file_system_failure
from decodeonce.formatting import counted
from decodeonce.host import usable_cores
from decodeonce.prep.listing import Entry, Scan, Undecodable, name_bytes
from decodeonce.prep.processes.child import Parent, run_workers
from decodeonce.prep.sources.classes import ClassList, NoLabels, check_no_duplicates, check_unlabeled
from decodeonce.prep.sources.files import size_problem
from decodeonce.prep.sources.labels import LabeledSource
from decodeonce.prep.sources.parquet import class_names as names_in_schema
from decodeonce.prep.sources.parquet import column, describe_labels, find_columns
from decodeonce.prep.user_code import import_function, raised_text, user_code
from decodeonce.remote import check_url
from decodeonce.store.layout import Paired

MOST_SAMPLES = 1_000_000_000  # a plan of more would not fit into memory
SAMPLES_AT_ONCE = 64  # that a process lists before it reports them
FIRST_SAMPLES = 8  # the first one of them that can be read tells the names of columns and masks
TABLE_ROWS_AT_ONCE = 1 << 14  # of a Hugging Face dataset, whose listing reads no images
EXPECTED_IMAGE = "expected a PIL image, a uint8 array (H, W), (H, W, 1) or (H, W, 3), or the bytes of an image file"
EXPECTED_DATASET = "expected an object with len() and [index], where dataset[0] is (image, label)"


class DatasetSample(NamedTuple):
    """A sample of a dataset.

    Attributes:
        data: The bytes of an image file; b"" if only the other values were read.
        label: The class number or name as text; None without a label.
        numbers: Values of columns by name.
        paired: The bytes of image files of masks and second images by name.
    """

    data: bytes
    label: str | None
    numbers: Mapping[str, Any]
    paired: Mapping[str, bytes] = {}


class IndexedDataset:
    """A dataset whose samples are (image, label) or (image, label, {"column": numbers, "mask": mask}).

    With `no_labels`, labels may be anything, and a sample may be its image alone.

    Attributes:
        class_names: The dataset's `classes`; None if it has none.
        fingerprint: A text that changes with the dataset; "" if only reading all samples tells.
        description: What the dataset is, in words.
    """

    samples_at_once = SAMPLES_AT_ONCE
    fingerprint = ""

    def __init__(self, dataset: Any, *, no_labels: bool = False) -> None:
        self._dataset = dataset
        self.no_labels = no_labels
        self.class_names = _texts(getattr(dataset, "classes", None))
        samples = counted(len(dataset), "sample") + (" without labels" if no_labels else "")
        self.description = f"{samples}, which are read once to list them and once for the rows"

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
            expected = (
                "expected (image, label) or (image, label, {'column': numbers}); without labels, pass --no-labels"
            )
            raise Undecodable(f"found a {found}, {expected}")
        image, label, others = (*item, {})[:3]
        if not isinstance(others, Mapping):
            raise Undecodable(f"third value is a {type(others).__name__}, expected {{'column': numbers}}")
        others = {str(name): value for name, value in others.items() if wanted is None or str(name) in wanted}
        data = encoded(image)
        paired = {name: mask for name, value in others.items() if (mask := _encoded_mask(name, value))}
        numbers = {name: value for name, value in others.items() if name not in paired}
        text = None if self.no_labels else _label_text(label)
        return DatasetSample(data, text, json.loads(json.dumps(numbers, default=_plain)), paired)


class HuggingFaceDataset:
    """A `datasets.Dataset`, read as Arrow tables, so that images stay encoded.

    Args:
        dataset: The dataset.
        name: Its name in messages.
        asked: The arguments of `parquet.find_columns`.
    """

    samples_at_once = TABLE_ROWS_AT_ONCE

    def __init__(self, dataset: Any, name: str, **asked: Any) -> None:
        if dataset.format["type"] == "custom":
            advice = "wrap the dataset in a class whose samples are (image, label), or remove the transform"
            raise BuildError(f"{name}: the dataset has a transform, which cannot be applied to a table; {advice}")
        self._chosen = find_columns(name, dataset.features.arrow_schema, **asked)
        image, _, label, numbers = self._chosen
        self._images = dataset.select_columns([image.partition(".")[0]]).with_format("arrow")
        self._others = dataset.select_columns([*filter(None, [label]), *numbers]).with_format("arrow")
        self.columns, self.no_labels = list(numbers), not label
        self.class_names = names_in_schema(dataset.features.arrow_schema, label)
        self.fingerprint = str(dataset._fingerprint)
        self.description = f"{counted(len(dataset), 'sample')}, images from {image}, {describe_labels(label)}"

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int, _: object = None) -> DatasetSample:
        """Return a sample; raise Undecodable if it has no image, or what reading the image's file raises."""
        row = self._images[index : index + 1]
        data = column(row, self._chosen.image)[0].as_py()
        if data is None and self._chosen.path:
            path = column(row, self._chosen.path)[0].as_py()
            data = Path(path).read_bytes() if path else None
        [sample] = self.listed(index, index + 1)
        return sample._replace(data=encoded(data))

    def listed(self, first: int, last: int) -> Iterator[DatasetSample]:
        """Yield the samples [first, last) without their images."""
        rows = self._others[first:last]
        numbers = [column(rows, name).to_pylist() for name in self.columns]
        of_label = self._chosen.label
        labels = column(rows, of_label).to_pylist() if of_label else [None] * (last - first)
        for label, *values in zip(labels, *numbers, strict=True):
            text = None if label is None else str(label)
            yield DatasetSample(b"", text, dict(zip(self.columns, values, strict=True)))


class DatasetSource(LabeledSource):
    """The samples of a dataset that a function or class returns.

    Listing reads every sample once, in several processes, because only the samples themselves contain their labels.
    From a Hugging Face dataset, it reads only the labels and the columns of numbers. A sample is named by its index. If
    reading a sample raises an exception, the sample is rejected, unless memory, the file system or a permission is at
    fault. If a sample differs from the listed sample, reading it raises BuildError.

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
        all_columns: Whether a sample with a column or mask that the first one lacks is an error; default False.
        fingerprint: The fingerprint of the Hugging Face dataset at that time.
        paired: The masks ("mask") and second images ("target:rgb") at that time.

    Raises:
        BuildError: If the dataset cannot be imported or made, is not one, or none of its first samples can be read.

    Example:
        >>> source = DatasetSource("mydata:digits")
        >>> [cls.name for cls in source.scan().classes]
        ['even', 'odd']
    """

    kind = "dataset"

    def __init__(  # noqa: PLR0913 - the last three are for workers
        self,
        root: str | Path,
        *,
        classes: Sequence[str] | None = None,
        column: Sequence[str] | None = None,
        image_column: str = "",
        label_column: str = "",
        no_labels: bool = False,
        length: int | None = None,
        all_columns: bool = False,
        fingerprint: str = "",
        paired: Sequence[str] = (),
    ) -> None:
        self._made_from, self._name = Path(root), Path(root).name
        check_unlabeled(no_labels, label_column=label_column)
        self._asked: dict[str, Any] = {"image_column": image_column, "label_column": label_column}
        self._unlabeled = {"no_labels": no_labels, "optional": classes is None}
        self._length, self._fingerprint = length, fingerprint
        self._options = {**self._asked, **({} if column is None else {"column": list(column)})}
        self._wanted = column
        self._all_columns = all_columns
        self.paired = tuple(map(Paired.parse, paired))
        if length is None:
            no_labels = self._dataset.no_labels
            self._length, self._fingerprint = len(self._dataset), self._dataset.fingerprint
            if self._length > MOST_SAMPLES:
                raise BuildError(f"{self._name}: len() is {self._length:,}, expected at most {MOST_SAMPLES:,}")
            columns, found = self._of_first_sample()
            self._all_columns = column is None
            self.paired = tuple(one for one in found if column is None or one.name in column)
            paired = [one.name for one in self.paired]
            column = columns if column is None else [name for name in column if name not in paired]
            if classes is None and not no_labels and (names := self._dataset.class_names) is not None:
                if wrong := [name for name in names if not _is_name(name)]:
                    raise BuildError(f"the classes of {self._name}: {wrong[0]!r} is not valid Unicode; correct it")
                classes = ClassList(names, f"the classes of {self._name}")
                check_no_duplicates(classes)
        super().__init__(Path(root), classes, column, no_labels=no_labels)
        self._asked |= super().options()
        self._wanted = [*self.column_names, *(one.name for one in self.paired)]

    @property
    def found(self) -> str:
        return self._dataset.description

    def arguments(self) -> dict[str, Any]:
        return {**self._own_facts(), **super().arguments()}

    def _own_facts(self) -> dict[str, Any]:
        own = {"column": list(self.column_names), "length": self._length, "fingerprint": self._fingerprint}
        paired = {"paired": [one.text for one in self.paired]} if self.paired else {}
        return {**self._asked, **own, **paired, "all_columns": self._all_columns, "classes": self._requested}

    def fingerprint(self) -> Any:
        return self._own_facts() if self._fingerprint else None

    def options(self) -> dict[str, Any]:
        return {**super().options(), **{name: value for name, value in self._options.items() if value != ""}}

    def scan(self) -> Scan:
        """Return every sample in the order of the indices, after all of them have been listed."""
        listed = dict(self._list_in_processes())
        seen: dict[str, str] = {}
        for first in sorted(listed):
            for index, (label, *_) in enumerate(json.loads(listed[first]), first):
                if label:
                    seen.setdefault(label, f"{self._name}[{index}]")
        self._learn(seen)
        return self._scanned(self._entries(listed))

    def _entries(self, listed: Mapping[int, str]) -> Iterator[Entry]:
        for first in sorted(listed):
            for index, (label, numbers, size, version, problem) in enumerate(json.loads(listed[first]), first):
                number, unlabeled = (0, "") if problem else self._class_of(label)
                problem = problem or unlabeled
                values = () if problem else self._checked(map(numbers.get, self.column_names), f"{self._name}[{index}]")
                yield Entry(b"%d" % index, number, size, version, problem, place=index, values=values)

    def _list_in_processes(self) -> list[tuple[int, str]]:
        """Return what `listed` returns for parts of the dataset, as JSON, each with its first index."""
        assert self._length is not None
        step, found = self._dataset.samples_at_once, list[tuple[int, str]]()
        parts = [(first, min(first + step, self._length)) for first in range(0, self._length, step)]
        task = [str(self.root.absolute()), self._own_facts()]
        count, what = min(usable_cores(), len(parts)), f"{self._name}: a process that lists the dataset"
        run_workers(__name__, count, task, iter(parts), lambda part: found.append((*part,)), what)
        return found

    def listed(self, first: int, last: int) -> str:
        """Return label, columns, size, version and problem of the samples [first, last), as JSON."""
        rows: list[Any] = []
        with user_code():
            samples = self._dataset.listed(first, last) if isinstance(self._dataset, HuggingFaceDataset) else None
            for index in range(first, last):
                try:
                    sample = next(samples) if samples else self._sample(index)
                    numbers = {name: sample.numbers.get(name) for name in self.column_names}
                    rows.append((sample.label, numbers, len(sample.data), self._version(sample), ""))
                except Undecodable as problem:
                    rows.append((None, {}, 0, 0, str(problem)))
        return json.dumps(rows)

    def read(self, entry: Entry) -> list[bytes]:
        """Return the image and what is paired with it; raise BuildError if the sample differs from the listed one."""
        with user_code():
            sample = self._sample(entry.place)
        if entry.version not in (0, self._version(sample)):
            raise BuildError(
                f"{self._name}[{entry.place}]: differs from the sample that was listed; expected the same image, label "
                "and columns each time: remove random transforms from the dataset; if its data changed, remove OUT and "
                "build again"
            )
        return [sample.data, *(sample.paired[one.name] for one in self.paired)]

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
                raise_file_system_failure(error, f"{self._name}[{index}]")
            raise Undecodable(raised_text(error)) from None
        expected = {*sample.numbers, *sample.paired} if self._wanted is None else {*self._wanted}
        if others := sorted({*sample.numbers, *sample.paired} - expected):
            advice = "give every sample the same names, or choose columns with --column NAME"
            raise BuildError(f"{self._name}[{index}]: has {others[0]!r:.80}, which the first sample lacks; {advice}")
        if missing := [one.name for one in self.paired if one.name not in sample.paired]:
            problem = f"{missing[0]} is missing, or is not an image as in the first sample"
        if problem:
            raise Undecodable(problem)
        return sample

    def _version(self, sample: DatasetSample) -> int:
        """Return a number that takes the place of a file's mtime: it changes with the sample or the fingerprint."""
        described = json.dumps([self._fingerprint, sample.label, sample.numbers])
        hashed = xxhash.xxh3_64(described.encode())
        if not self._fingerprint:
            hashed.update(sample.data)
            for one in self.paired:
                hashed.update(sample.paired[one.name])
        return hashed.intdigest() >> 1 | 1  # fits int64; 0 means unknown

    def _of_first_sample(self) -> tuple[list[str], Sequence[Paired]]:
        """Return columns, masks and second images of the first sample that can be read; none of an empty dataset."""
        if isinstance(self._dataset, HuggingFaceDataset):
            return self._dataset.columns, []
        problem, first = "", range(min(len(self._dataset), FIRST_SAMPLES))
        for index in first:
            try:
                with user_code():
                    sample = self._sample(index)
            except Undecodable as error:
                problem = problem or f"{self._name}[{index}]: {error}"
                continue
            try:
                paired = [Paired(name, 3 if data.startswith(b"P6") else 1) for name, data in sample.paired.items()]
            except ValueError as error:
                advice = "rename it, or name the others with --column"
                raise BuildError(f"{self._name}[{index}]: {error}; {advice}") from None
            return list(sample.numbers), paired
        if problem:
            expected = f"expected a sample that names the columns and masks among the first {len(first)}"
            raise BuildError(f"{problem}; {expected}; correct the sample, or remove it from the dataset")
        return [], []

    @cached_property
    def _dataset(self) -> IndexedDataset | HuggingFaceDataset:
        """The dataset, which is made on first use."""
        function = import_function(self._name, "", self._made_from.absolute().parent)
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
            again = f"python -c 'import {module}; {module}.{called}()'"
            raise BuildError(
                f"{self._name}: calling it raised {raised_text(error)}; reproduce it with: {again}"
            ) from error
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
            Face dataset, none. If no other column of a Hugging Face dataset could hold labels, all samples are of one
            class.
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
        src,
        classes=classes,
        column=column,
        image_column=image_column,
        label_column=label_column,
        no_labels=no_labels,
    )


def encoded(image: object) -> bytes:
    """Return the bytes of an image file: the given ones, or the pixels of an image or array as PPM or PGM.

    Raises:
        Undecodable: If it is none of these, or cannot be converted.
    """
    from PIL import Image

    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, Image.Image):
        return _netpbm(_pixels(image))
    if (
        isinstance(image, np.ndarray)
        and image.dtype == np.uint8
        and (image.ndim == 2 or image.shape[2:] in ((1,), (3,)))
    ):
        return _netpbm(image)
    found = (
        f"{image.dtype} {image.shape}" if hasattr(image, "dtype") and hasattr(image, "shape") else type(image).__name__
    )
    raise Undecodable(f"image is {found}, {EXPECTED_IMAGE}")


def _encoded_mask(name: str, value: Any) -> bytes:
    """Return a mask or second image as a PGM or PPM file; b"" if the value is a number or a list of numbers."""
    from PIL import Image

    if isinstance(value, Image.Image):
        deep = value.mode[0] in "IF"  # to RGB, Pillow would clip these to white
        pixels = np.asarray(value if deep or value.mode in ("1", "L", "P") else value.convert("RGB"))
        pixels = pixels.astype(np.uint8) if value.mode == "1" else pixels
    elif getattr(value, "ndim", 0) < 2:
        return b""
    else:
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
    if label is None or isinstance(label, str):
        if not _is_name(label or ""):
            raise Undecodable(f"label is {label!r:.80}, which is not valid Unicode")
        return label
    try:
        return str(operator.index(label))  # type: ignore[arg-type]
    except TypeError:
        raise Undecodable(f"label is {label!r:.80}, expected a class number or name") from None


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


def main(arguments: list[str]) -> int:
    """List the parts of a dataset that the parent orders."""
    with Parent(arguments) as parent:
        root, facts = parent.receive()
        source = DatasetSource(root, **facts)
        for first, last in parent.orders():
            try:
                parent.report((first, source.listed(first, last)))
            except MemoryError:
                advice = "run the same command again with more memory"
                raise Stopped(f"{Path(root).name}: out of memory; {advice}") from None
    return 0
