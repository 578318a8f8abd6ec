#!/bin/sh
# Installs decodeonce into /opt/decodeonce from the sources in the current folder: one set of steps for Dockerfile and
# decodeonce.def. Wants python3 with venv and, for the extra [prep] on x86-64, a C compiler and the headers of libjpeg,
# zlib, libwebp and libtiff.
#   MARCH        -march of pillow-simd: "" runs on every x86-64 with SSE4, x86-64-v3 wants AVX2, and has it
#   EXTRAS       "[prep,parquet]"; "" for training alone; "[prep-pillow]" where there is a Pillow below
#   TORCH_INDEX  where torch comes from, or "base": that of the image below is used, and so are its numpy and Pillow
set -eu
pip="/opt/decodeonce/bin/python -m pip --disable-pip-version-check --no-cache-dir --no-input"
pins=constraints.txt
if [ "$TORCH_INDEX" = base ]; then
  python3 -c 'import torch' || { echo "install.sh: TORCH_INDEX=base, but the base image has no torch" >&2; exit 1; }
  python3 -m venv --system-site-packages /opt/decodeonce
  # What torch brought is left as it is.
  pins=$(mktemp)
  grep -E '^(h5py|pillow-simd|pyarrow|setuptools|simplejpeg|tqdm|typer|xxhash)==' constraints.txt >"$pins"
else
  python3 -m venv /opt/decodeonce
  PIP_CONSTRAINT=$pins $pip install --extra-index-url "$TORCH_INDEX" torch
fi
# pillow-simd is compiled here, never a wheel from elsewhere.
export CC="cc${MARCH:+ -march=$MARCH}" PIP_CONSTRAINT="$pins" PIP_BUILD_CONSTRAINT="$pins"
$pip install --no-binary pillow-simd ".$EXTRAS"
/opt/decodeonce/bin/prep --help >/dev/null
