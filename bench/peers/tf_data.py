"""tf.data: JPEG files decoded in the loop, and TFRecords of raw 256x256 pixels. TensorFlow decodes and resizes.

Settings are from "Better performance with the tf.data API" (parallel map and interleave, vectorised map, prefetch),
"TFRecord and tf.train.Example" and "tf.data.Options" in TensorFlow's documentation: `map` and `interleave` on two
threads of a private pool, AUTOTUNE for prefetching, and batching before parsing. `tf.image.resize` has its default
settings, bilinear without antialiasing, which is less work than the other peers do. Augmentation is
`tf.image.sample_distorted_bounding_box`, one image at a time in `map`. Only the crop of a JPEG is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.harness.peer import Arm, Batches, Peer, Source
from bench.peers.harness.vision import MEAN, STD

SHARDS = 10
BUFFER = 1000  # size of the buffer that shuffles records; shards are shuffled first


def decoded(source: Source, *, shuffled: bool) -> Any:
    """Return a dataset of images and labels that decodes files on `workers` threads."""
    import tensorflow as tf

    paths = [str(path) for path, _ in source.files]
    labels = [label for _, label in source.files]
    dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
    dataset = dataset.shuffle(len(paths)) if shuffled else dataset
    size = source.size

    def decode(path: Any, label: Any) -> tuple[Any, Any]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        sides = tf.shape(image)[:2]
        sides = sides * size // tf.reduce_min(sides)
        image = tf.cast(tf.round(tf.image.resize(image, sides)), tf.uint8)
        top, left = (sides[0] - size) // 2, (sides[1] - size) // 2
        return tf.ensure_shape(image[top : top + size, left : left + size], source.shape), label

    return limited(dataset.map(decode, num_parallel_calls=source.workers), source)


def distorted(shape: Any, crop: Callable[[Any, Any], Any], size: int) -> Any:
    """Return a random crop of an image of this shape, resized, flipped and normalized; `crop` reads the region."""
    import tensorflow as tf

    boxes = tf.constant([0.0, 0.0, 1.0, 1.0], shape=(1, 1, 4))
    options = {"min_object_covered": 0.1, "aspect_ratio_range": (3 / 4, 4 / 3), "area_range": (0.08, 1.0)}
    begin, extent, _ = tf.image.sample_distorted_bounding_box(shape, boxes, **options)
    image = tf.image.random_flip_left_right(tf.image.resize(crop(begin, extent), (size, size)))
    mean, std = (255 * tf.constant(values) for values in (MEAN, STD))
    return tf.ensure_shape((image - mean) / std, (size, size, 3))


def limited(dataset: Any, source: Source) -> Any:
    """Limit the dataset to a pool of `workers` threads."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = source.workers
    return dataset.with_options(options)


def build(source: Source, folder: Path) -> None:
    """Write one record per image, to shards in turn."""
    import tensorflow as tf

    writers = [tf.io.TFRecordWriter(str(folder / f"{shard:05d}.tfrecord")) for shard in range(SHARDS)]
    for row, (image, label) in enumerate(decoded(source, shuffled=False).prefetch(tf.data.AUTOTUNE)):
        pixels = tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.numpy().tobytes()]))
        number = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)]))
        features = tf.train.Features(feature={"image": pixels, "label": number})
        writers[row % SHARDS].write(tf.train.Example(features=features).SerializeToString())
    for writer in writers:
        writer.close()


def read_records(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs with shuffled shards and a shuffle buffer of records."""
    import tensorflow as tf

    shards = sorted(map(str, folder.glob("*.tfrecord"))) * source.copies
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(records: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(records, features)
        return tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (-1, *source.shape)), found["label"]

    names = tf.data.Dataset.from_tensor_slices(shards).shuffle(len(shards))
    options = {"num_parallel_calls": source.workers, "deterministic": False}
    records = names.interleave(tf.data.TFRecordDataset, cycle_length=source.workers, **options).shuffle(BUFFER)
    batches = records.batch(source.batch_size).map(parse, num_parallel_calls=source.workers)
    dataset = limited(batches.prefetch(tf.data.AUTOTUNE), source)
    return dataset.as_numpy_iterator


def read_records_augmented(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return such epochs, parsed and augmented one record at a time."""
    import tensorflow as tf

    shards = sorted(map(str, folder.glob("*.tfrecord"))) * source.copies
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, features)
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), source.shape)
        return distorted(source.shape, partial(tf.slice, image), source.crop), found["label"]

    names = tf.data.Dataset.from_tensor_slices(shards).shuffle(len(shards))
    options = {"num_parallel_calls": source.workers, "deterministic": False}
    records = names.interleave(tf.data.TFRecordDataset, cycle_length=source.workers, **options).shuffle(BUFFER)
    images = records.map(parse, **options)
    return limited(images.batch(source.batch_size).prefetch(tf.data.AUTOTUNE), source).as_numpy_iterator


def read_jpeg_augmented(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of shuffled files, whose random crops are decoded in the loop."""
    import tensorflow as tf

    paths = [str(path) for path, _ in source.files]
    dataset = tf.data.Dataset.from_tensor_slices((paths, [label for _, label in source.files])).shuffle(len(paths))

    def decode(path: Any, label: Any) -> tuple[Any, Any]:
        data = tf.io.read_file(path)

        def crop(begin: Any, extent: Any) -> Any:
            return tf.io.decode_and_crop_jpeg(data, tf.concat([begin[:2], extent[:2]], 0), channels=3)

        return distorted(tf.io.extract_jpeg_shape(data), crop, source.crop), label

    dataset = dataset.map(decode, num_parallel_calls=source.workers)
    return limited(dataset.batch(source.batch_size).prefetch(tf.data.AUTOTUNE), source).as_numpy_iterator


def read_jpeg(source: Source, folder: Path) -> Callable[[], Batches]:
    """Return epochs of shuffled files, decoded in the loop."""
    import tensorflow as tf

    dataset = decoded(source, shuffled=True).batch(source.batch_size).prefetch(tf.data.AUTOTUNE)
    return dataset.as_numpy_iterator


PEER = Peer(
    title="tf.data",
    modules=("tensorflow",),
    distributions=("tensorflow-cpu", "numpy"),
    arms=(
        Arm("tf.data, TFRecords", read_records, exact=False),
        Arm("tf.data, JPEG files by TensorFlow", read_jpeg, decodes=True, exact=False),
        Arm("tf.data, TFRecords, tf.image", read_records_augmented, augmented=True),
        Arm("tf.data, JPEG files by TensorFlow, tf.image", read_jpeg_augmented, decodes=True, augmented=True),
    ),
    build=build,
    decoder="TensorFlow",
    own_decoder="its graph decodes, and Python functions in a graph run on one thread at a time",
    over="nothing",
    requirements="""
        tensorflow-cpu==2.21.0
        absl-py==2.5.1
        astunparse==1.6.3
        certifi==2026.10.18
        charset-normalizer==3.5.2
        flatbuffers==25.12.19
        gast==0.7.0
        google-pasta==0.2.0
        grpcio==1.85.1
        h5py==3.14.0
        idna==3.20
        keras==3.15.1
        libclang==18.1.1
        markdown-it-py==4.3.0
        mdurl==0.1.2
        ml_dtypes==0.6.0
        namex==0.1.0
        numpy==2.4.6
        opt_einsum==3.4.0
        optree==0.20.0
        packaging==26.3
        protobuf==7.36.2
        Pygments==2.21.0
        requests==2.34.2
        rich==15.0.0
        setuptools==84.2.1
        six==1.17.0
        termcolor==3.3.0
        typing_extensions==4.16.0
        urllib3==2.8.0
        wheel==0.48.0
        wrapt==2.5.2
    """,
)
