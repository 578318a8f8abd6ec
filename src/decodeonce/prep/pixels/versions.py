"""The installed decoders: which PIL an import gives (Pillow and pillow-simd share one name), and every version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.host import installed_version

INSTALL = 'run: pip install "decodeonce[prep]" (without a C compiler: "decodeonce[prep-pillow]")'
DISTRIBUTIONS = ("pillow-simd", "pillow")


@dataclass(frozen=True)
class Pillow:
    """The live PIL: its distribution ("" for none) and version, SIMD level, and every distribution installed as PIL."""

    name: str
    version: str
    simd: str
    installed: tuple[str, ...]

    @property
    def description(self) -> str:
        """In a few words, for people."""
        if not self.name:
            return "not installed"
        both = " (installed over each other)" if len(self.installed) > 1 else ""
        return f"{self.name} {self.version}, {self.simd}{both}"


def find_pillow() -> Pillow:
    """The PIL that an import gives; pillow-simd's versions end in .postN."""
    installed = tuple(name for name in DISTRIBUTIONS if installed_version(name) is not None)
    library = find_spec("PIL._imaging") if find_spec("PIL") else None
    if library is None or library.origin is None:
        return Pillow("", "", "", installed)
    import PIL

    name = "pillow-simd" if ".post" in PIL.__version__ else "pillow"
    return Pillow(name, PIL.__version__, _simd_level(name, Path(library.origin)), installed)


def _simd_level(name: str, library: Path) -> str:
    """By the machine code: the multiply-add that resizing consists of (vpmaddwd), on 256 bits or not.

    Counted in builds of 12.1.1: 62 with -mavx2, 0 without.
    """
    if name != "pillow-simd":
        return "no SIMD"
    wide = sum(byte[0] & 7 == 5 for byte in re.findall(rb"\xc5(.)\xf5", library.read_bytes(), re.DOTALL))
    return "AVX2" if wide > 8 else "SSE4"


def decoder_versions(container: str) -> dict[str, str]:
    """Name and version of everything whose release may change a store's bytes; BuildError where one is missing."""
    pillow = find_pillow()
    if not pillow.name:
        raise BuildError(f"no picture decoder: neither pillow-simd nor Pillow is installed; {INSTALL}")
    from PIL import features

    simplejpeg = installed_version("simplejpeg")
    if simplejpeg is None:
        raise BuildError(f"no JPEG decoder: simplejpeg is not installed; {INSTALL}")
    libjpeg = features.version("libjpeg_turbo") or features.version("jpg") or "none"
    found = {"simplejpeg": simplejpeg, pillow.name: pillow.version, f"{pillow.name}'s libjpeg": libjpeg}
    for library, feature in (("libwebp", "webp"), ("libtiff", "libtiff")):  # without them such files are rejects
        found[f"{pillow.name}'s {library}"] = features.version(feature) or "none"
    if container == "hdf5":
        import h5py

        found["libhdf5"] = h5py.version.hdf5_version
    return found
