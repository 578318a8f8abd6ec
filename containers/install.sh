#!/bin/sh
# Install decodeonce into /opt/decodeonce from the sources in the current folder. Dockerfile and decodeonce.def both run
# this script. It needs python3 with venv. The extra [prep-simd] on x86-64 also needs a C compiler and the headers of libjpeg,
# zlib, libwebp and libtiff. Set these variables:
#   MARCH        -march for pillow-simd. "": runs on every x86-64 with SSE4; x86-64-v3: uses AVX2 and requires it
#   EXTRAS       "[prep-simd,parquet]"; "" for training only; "[prep]" if the base image has Pillow
#   TORCH_INDEX  package index for torch; "base": use torch, numpy and Pillow of the base image
set -eu
pip="/opt/decodeonce/bin/python -m pip --disable-pip-version-check --no-cache-dir --no-input"
pins=constraints.txt
if [ "$TORCH_INDEX" = base ]; then
  python3 -c 'import torch' || { echo "install.sh: TORCH_INDEX=base, but the base image has no torch" >&2; exit 1; }
  python3 -m venv --system-site-packages /opt/decodeonce
  # The other pins are left out, so that pip keeps the packages that torch brought.
  pins=$(mktemp)
  grep -E '^(bracex|h5py|pillow-simd|pyarrow|setuptools|simplejpeg|tqdm|typer|xxhash)==' constraints.txt >"$pins"
else
  python3 -m venv /opt/decodeonce
  PIP_CONSTRAINT=$pins $pip install --extra-index-url "$TORCH_INDEX" torch
fi
# Compile pillow-simd here. A wheel could be built for another CPU.
export CC="cc${MARCH:+ -march=$MARCH}" PIP_CONSTRAINT="$pins" PIP_BUILD_CONSTRAINT="$pins"
$pip install --no-binary pillow-simd ".$EXTRAS"
/opt/decodeonce/bin/prep --help >/dev/null
