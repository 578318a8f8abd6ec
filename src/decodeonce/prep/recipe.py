"""The recipe: everything that decides a store's bytes, chosen by the user or found in the installed decoders."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.host import installed_version
from decodeonce.prep.pillow import find_pillow
from decodeonce.store.manifest import CONTAINERS

FITS = ("crop", "stretch", "pad")
FILTERS = ("bilinear", "bicubic", "lanczos", "box")
EXIF = ("ignore", "apply")
ODD = ("keep", "reject")
INSTALL = 'install them with: pip install "decodeonce[prep]"'


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes a row of (height, width, 3) uint8, and how rows lie in shards; checks itself.

    `fit` "crop" is torchvision's Resize and CenterCrop, "stretch" one resize, "pad" a resize inside and black around.
    `shuffle_seed` permutes the samples at plan time, None keeps the source's order. `shard_size` is in bytes.
    """

    height: int = 256
    width: int = 256
    fit: str = "crop"
    filter: str = "bilinear"
    container: str = "npy"
    shard_size: int = 32 << 30
    shuffle_seed: int | None = None
    exif: str = "ignore"
    on_odd: str = "keep"
    scaled_decode: bool = False

    def __post_init__(self) -> None:
        if not (1 <= self.height <= 16384 and 1 <= self.width <= 16384):
            raise ValueError(f"size is {self.height}x{self.width}, expected 1 to 16384 pixels a side")
        if self.shard_size < 1:
            raise ValueError(f"shard_size is {self.shard_size} bytes, expected at least 1")
        choices = {"fit": FITS, "filter": FILTERS, "container": CONTAINERS, "exif": EXIF, "on_odd": ODD}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(allowed)}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of a row."""
        return (self.height, self.width, 3)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.height * self.width * 3

    def facts(self, decoders: dict[str, str]) -> dict[str, Any]:
        """The recipe as manifests and plans write it."""
        return {**asdict(self), "decoders": decoders}


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
    if container == "hdf5":
        import h5py

        found["libhdf5"] = h5py.version.hdf5_version
    return found


def differences(wanted: dict[str, Any], planned: dict[str, Any]) -> list[str]:
    """What differs between two recipes, a phrase each: "filter is box, the plan says bilinear"."""
    found = []
    for key in sorted({*wanted, *planned}):
        mine, theirs = wanted.get(key, "absent"), planned.get(key, "absent")
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += differences(mine, theirs)
        elif mine != theirs:
            found.append(f"{key} is {mine}, the plan says {theirs}")
    return found
