"""The kernel that unpacks rows compiles for GPUs of NVIDIA and AMD, also where none is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = """
import sys, warnings
warnings.simplefilter("ignore")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from decodeonce.loader.augment.kernel import move_pixels

types = {"images": "*u8", "windows": "*fp64", "moves": "*fp32", "scales": "*fp32", "shifts": "*fp32", "out": "*bf16"}
constants = {"PIXELS": sys.argv[1], "RESIZE": True, "NORMALIZE": True, "TAPS_Y": 3, "TAPS_X": 3, "BLOCK": 256}
signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in move_pixels.arg_names}
for target in (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    compiled = triton.compile(ASTSource(move_pixels, signature, constants), target=target)
    print(target.arch, len(compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]))
"""


@pytest.mark.long
@pytest.mark.parametrize("pixels", ["rgb", "yuv420", "bc4"])
def test_kernel_compiles(pixels: str, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton comes only with torch's builds for accelerators")
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["TRITON_CACHE_DIR"] = str(tmp_path)
    printed = subprocess.check_output([sys.executable, "-c", COMPILE, pixels], env=environ, text=True)
    sizes = dict(line.split() for line in printed.splitlines())
    assert sizes.keys() == {"80", "90", "gfx942"}
    assert all(int(size) > 4096 for size in sizes.values())
