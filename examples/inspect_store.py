# ---
# jupyter:
#   jupytext:
#     notebook_metadata_filter: -jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inspect a store
#
# This notebook reads a store with NumPy only, shows its images and their colours, and measures how fast it loads.
#
# `make notebook` runs it in its own environment and writes the result to `build/notebook`. To run it elsewhere, install
# Jupyter and, in a checkout, run `pip install ".[prep-pillow]" matplotlib`. Set the store with the environment variable
# `STORE=/path/to/train.store`, or as a path in the next cell. If it does not exist, a small store is built.

# %%
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

STORE = Path(os.environ.get("STORE") or "sample.store")

# %%
if not STORE.exists():
    tree = STORE.with_suffix(".tree")
    prep = [sys.executable, "-m", "decodeonce.cli"]
    subprocess.run([*prep, "sample", tree, "--count", "300", "--classes", "12"], check=True)
    # Some of the generated images are damaged, as in every large dataset. They are listed in rejects.tsv.
    subprocess.run([*prep, "build", "imagenet", tree, STORE, "--max-bad", "2%"], check=True)

# %% [markdown]
# ## Without decodeonce
#
# A store is a folder. `store.json` describes it, and its shards are arrays with one image per row. The cells up to the
# Loader's rates read it with `json` and `numpy` only.

# %%
facts = json.loads((STORE / "store.json").read_bytes())
if (facts["format"], facts["version"]) != ("decodeonce", 1) or (STORE / "stage.json").exists():
    raise SystemExit(f"{STORE}: not a complete store of version 1")
labels = np.load(STORE / "labels.npy", mmap_mode="r")
print(f"{facts['count']:,} images of {facts['shape']} in {len(facts['classes'])} classes")
for shard in facts["shards"]:
    print(f"   {shard['file']}: {shard['rows']:,} rows, {shard['bytes'] / 1e9:.2f} GB")


# %%
def open_shard(shard):
    """Memory-map a shard as uint8 (rows, H, W, C); rows are read when they are used."""
    path, shape = STORE / shard["file"], (shard["rows"], *facts["shape"])
    if facts["container"] == "npy":
        return np.load(path, mmap_mode="r")
    return np.memmap(path, np.uint8, "r", shard["data_offset"], shape)  # HDF5: one contiguous dataset


shards = [open_shard(shard) for shard in facts["shards"]]
starts = [shard["first_row"] for shard in facts["shards"]]


def image_of(row):
    """Return the image of a row, uint8 (H, W, C)."""
    shard = np.searchsorted(starts, row, side="right") - 1
    return shards[shard][row - starts[shard]]


# %% [markdown]
# ## Images
#
# These are random rows, sorted by row number. The label of a row is an index into the classes. A class has the name of
# its folder, and a description if the source has one. If the store has boxes (`prep build --keep-boxes`), they are
# drawn.


# %%
def short(text):
    """Shorten a text and replace characters that fonts cannot draw."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text.partition(",")[0])
    return text if len(text) <= 24 else text[:23] + "…"


def class_name(row):
    """Return the class of a row, shortened."""
    found = facts["classes"][labels[row]]
    return short(found["description"] or found["name"])


columns = {column["name"]: np.load(STORE / column["file"], mmap_mode="r") for column in facts["columns"]}


def boxes_of(row):
    """Return the boxes of a row: left, top, right and bottom in pixels, and the shortened name of the class."""
    if "box_classes" not in facts or "boxes" not in columns:
        return []
    boxes = zip(columns["boxes"][row].tolist(), columns["box_labels"][row], strict=True)
    return [(box, short(facts["box_classes"][label])) for box, label in boxes if label >= 0]


def draw_boxes(axis, row):
    """Draw boxes as yellow lines on wider black ones, which are visible on light and dark images."""
    for (left, top, right, bottom), name in boxes_of(row):
        for ink, width in (("black", 2.2), ("#ffe14d", 0.9)):
            corner, size = (left - 0.5, top - 0.5), (right - left, bottom - top)
            axis.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor=ink, linewidth=width))
        label = {"facecolor": "#ffe14d", "edgecolor": "none", "pad": 0.6}
        axis.text(left, top, name, fontsize=5, va="top", bbox=label, clip_on=True, parse_math=False)


rng = np.random.default_rng(0)
chosen = np.sort(rng.choice(facts["count"], min(24, facts["count"]), replace=False))
figure, axes = plt.subplots(4, 6, figsize=(10, 7.6), layout="constrained")
for axis in axes.flat:
    axis.axis("off")
for row, axis in zip(chosen, axes.flat, strict=False):
    axis.imshow(image_of(row).squeeze(), cmap="gray", vmin=0, vmax=255)
    draw_boxes(axis, row)
    axis.set_title(f"{row}: {class_name(row)}", fontsize=7, parse_math=False)
plt.show()

# %% [markdown]
# ## Colours
#
# The plot shows how often each value occurs in each channel, in up to 500 random rows. `pixel_mean` and `pixel_std` in
# `store.json` are those of all rows. The peaks of plain black and white are cut off.

# %%
sampled = np.sort(rng.choice(facts["count"], min(500, facts["count"]), replace=False))
counts = np.zeros((facts["shape"][2], 256), np.int64)
for row in sampled:
    for channel, values in enumerate(np.moveaxis(image_of(row), 2, 0)):
        counts[channel] += np.bincount(values.ravel(), minlength=256)
share = counts / counts.sum(axis=1, keepdims=True)
mean = share @ np.arange(256)
std = np.sqrt(share @ np.arange(256) ** 2 - mean**2)

# %%
inks = ["#c0392b", "#27873f", "#2c5fb3"] if len(counts) == 3 else ["#444444"] * len(counts)
figure, axes = plt.subplots(len(counts), figsize=(10, 6), sharex=True, layout="constrained", squeeze=False)
for channel, (axis, ink) in enumerate(zip(axes.flat, inks, strict=True)):
    whole_mean, whole_std = facts["pixel_mean"][channel], facts["pixel_std"][channel]
    axis.fill_between(range(256), share[channel], color=ink, alpha=0.5, step="mid", label="sampled rows")
    axis.axvline(whole_mean, color="black", label="pixel_mean")
    axis.axvspan(whole_mean - whole_std, whole_mean + whole_std, color="black", alpha=0.08, label="± pixel_std")
    axis.set(xlim=(0, 255), ylim=(0, 1.3 * np.quantile(share[channel], 0.99)), ylabel=f"channel {channel}", yticks=[])
    print(f"channel {channel}: mean {mean[channel]:.1f} (all rows: {whole_mean:.1f}), ", end="")
    print(f"std {std[channel]:.1f} (all rows: {whole_std:.1f})")
axes[0, 0].legend(fontsize=8)
axes[-1, 0].set_xlabel("value")
plt.show()

# %% [markdown]
# ## Loading speed
#
# The plot shows the Loader's rates on this machine's CPU, with rows in memory: several batch sizes, one and two copying
# threads, three orders. The dashed lines are the rates of `np.copyto` between two large arrays with as many threads,
# because making a batch is such a copy. A store that fits into the processor's caches can load faster. Each point is
# measured for a fifth of a second. For reliable results, run `make bench`.

# %%
import time
from concurrent.futures import ThreadPoolExecutor

from decodeonce import Loader

SECONDS = 0.2
SIZES = [size for size in (16, 64, 256) if size <= facts["count"]] or [facts["count"]]
ROW_BYTES = int(np.prod(facts["shape"]))


def copy_rate(threads, nbytes=1 << 28):
    """Return bytes/s of np.copyto, the best of five runs."""
    parts = [np.zeros((2, nbytes // threads), np.uint8) + 1 for _ in range(threads)]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda part: np.copyto(part[0], part[1]), parts))
            seconds.append(time.perf_counter() - start)
    return nbytes / min(seconds)


def loader_rate(**settings):
    """Return bytes/s of a Loader, after one epoch that is not counted."""
    rows = 0
    with Loader(STORE, tail="keep", rank=0, world_size=1, **settings) as loader:
        for _ in loader:
            pass
        start = time.perf_counter()
        while time.perf_counter() < start + SECONDS:
            rows += sum(batch.valid for batch in loader)
        return rows * ROW_BYTES / (time.perf_counter() - start)


# %%
figure, axis = plt.subplots(figsize=(10, 5), layout="constrained")
for threads, ink in ((1, "#2c5fb3"), (2, "#c0392b")):
    name, copied = f"{threads} thread{'s'[: threads - 1]}", copy_rate(threads) / 1e9
    axis.axhline(copied, color=ink, linestyle="--", label=f"np.copyto, {name}: {copied:.1f} GB/s")
    for shuffle, marker in (("none", "o"), ("window", "s"), ("full", "^")):
        rates = [loader_rate(batch_size=size, threads=threads, shuffle=shuffle) / 1e9 for size in SIZES]
        axis.plot(SIZES, rates, color=ink, marker=marker, label=f"{name}, {shuffle}")
        parts = (f"{rate:.1f} GB/s in batches of {size}" for size, rate in zip(SIZES, rates, strict=True))
        print(f"{name}, {shuffle}: {', '.join(parts)}")
axis.set_xscale("log", base=2)
axis.set_xticks(SIZES, map(str, SIZES))
axis.set(xlabel="images per batch", ylabel="GB/s")
axis.set_ylim(bottom=0)
right = axis.secondary_yaxis("right", functions=(lambda y: y * 1e9 / ROW_BYTES, lambda y: y / 1e9 * ROW_BYTES))
right.set_ylabel("images/s")
axis.legend(fontsize=8, ncols=2)
plt.show()
