"""Versions of the installed decoders, and whether PIL is Pillow or pillow-simd, which share the import name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.host import installed_version

INSTALL = 'run in a checkout of decodeonce: pip install ".[prep]"'
DISTRIBUTIONS = ("pillow-simd", "pillow")


@dataclass(frozen=True)
class Pillow:
    """The PIL that is imported.

    Args:
        name: Name of its distribution; "" if none is installed.
        version: Its version.
        simd: Its SIMD level.
        installed: All distributions installed as PIL.
    """

    name: str
    version: str
    simd: str
    installed: tuple[str, ...]

    @property
    def description(self) -> str:
        """Name, version and SIMD level as one text."""
        return f"{self.name} {self.version}, {self.simd}"


def find_pillow() -> Pillow:
    """Find out which PIL an import loads."""
    installed = tuple(name for name in DISTRIBUTIONS if installed_version(name) is not None)
    library = _library()
    if library is None:
        return Pillow("", "", "", installed)
    import PIL

    name = _distribution(PIL.__version__)
    return Pillow(name, PIL.__version__, _simd_level(library) if name == "pillow-simd" else "no SIMD", installed)


def two_pillows() -> str:
    """Return a warning if both distributions are installed, so that one has overwritten files of the other."""
    if None in map(installed_version, DISTRIBUTIONS):
        return ""
    return (
        "pillow-simd and Pillow are both installed, and one has overwritten files of the other, so that images may be "
        "rejected or decoded differently; run prep doctor"
    )


def _library() -> Path | None:
    """Return the extension module of the PIL that an import loads; None if none is installed."""
    library = find_spec("PIL._imaging") if find_spec("PIL") else None
    return None if library is None or library.origin is None else Path(library.origin)


def _distribution(version: str) -> str:
    return "pillow-simd" if ".post" in version else "pillow"


def _simd_level(library: Path) -> str:
    """Return the SIMD level by searching the machine code for vpmaddwd on 256 bits, the multiply-add of resizing.

    Builds of 12.1.1 contain it 62 times with -mavx2 and 0 times without.
    """
    wide = sum(byte[0] & 7 == 5 for byte in re.findall(rb"\xc5(.)\xf5", library.read_bytes(), re.DOTALL))
    return "AVX2" if wide > 8 else "SSE4"


def decoder_versions(container: str) -> dict[str, str]:
    """Return the version of each library whose release may change a store's bytes; BuildError if one is missing."""
    if _library() is None:
        raise BuildError(f"no image decoder: neither pillow-simd nor Pillow is installed; {INSTALL}")
    import PIL
    from PIL import features

    from decodeonce.prep.pixels.failure_reasons import reads_avif

    simplejpeg = installed_version("simplejpeg")
    if simplejpeg is None:
        raise BuildError(f"no JPEG decoder: simplejpeg is not installed; {INSTALL}")
    libjpeg = features.version("libjpeg_turbo") or features.version("jpg") or "none"
    pillow = _distribution(PIL.__version__)
    found = {"simplejpeg": simplejpeg, pillow: PIL.__version__, f"{pillow}'s libjpeg": libjpeg}
    decoders = {"libwebp": "webp", "libtiff": "libtiff"}  # without them, such files are rejected
    if reads_avif():
        decoders["libavif"] = "avif"
    for library, feature in decoders.items():
        found[f"{pillow}'s {library}"] = features.version(feature) or "none"
    if container == "hdf5":
        import h5py

        found["libhdf5"] = h5py.version.hdf5_version
    return found
