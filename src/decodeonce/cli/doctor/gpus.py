"""Find the GPUs of this machine in files of the kernel, without torch.

`root` is the folder that contains `sys`, `proc` and `dev`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
NVIDIA, AMD = "NVIDIA GPUs", "AMD GPUs"


@dataclass(frozen=True)
class Vendor:
    """The name of a vendor, the PCI classes of its GPUs, and the drivers that torch can use."""

    name: str
    classes: tuple[str, ...]
    drivers: tuple[str, ...]


# By PCI vendor. Class 03 is a display controller, 12 00 a processing accelerator, as AMD's MI300 (pci_ids.h in Linux).
VENDORS = {
    "0x10de": Vendor("NVIDIA", ("0x03",), ("nvidia",)),
    "0x1002": Vendor("AMD", ("0x03", "0x1200"), ("amdgpu",)),
    "0x8086": Vendor("Intel", ("0x03",), ("i915", "xe")),
}


@dataclass(frozen=True)
class Gpu:
    """A GPU on the PCI bus. `driver` is "" if it has none, `node` None if the kernel does not know its NUMA node."""

    address: str
    vendor: Vendor
    driver: str
    node: int | None


def find_gpus(root: Path = ROOT) -> list[Gpu]:
    """Find the GPUs on the PCI bus, ordered by address. A container often sees those of its host."""
    with suppress(OSError):
        found = sorted((root / "sys/bus/pci/devices").iterdir())
        return [gpu for folder in found if (gpu := _gpu(folder))]
    return []


def _gpu(folder: Path) -> Gpu | None:
    vendor = VENDORS.get(read_text(folder / "vendor"))
    if vendor is None or not read_text(folder / "class").startswith(vendor.classes):
        return None
    driver = ""
    with suppress(OSError):
        driver = os.path.basename(os.readlink(folder / "driver"))
    node = read_text(folder / "numa_node")
    return Gpu(folder.name, vendor, driver, int(node) if node.isdigit() else None)  # the kernel writes -1 for unknown


def read_text(path: Path) -> str:
    """Return the text of a file without blanks around it; "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def device_files(root: Path = ROOT) -> str:
    """Return whose GPUs have files in /dev: NVIDIA, AMD or "" for none or unknown."""
    nvidia = any((root / "dev").glob("nvidia[0-9]*"))  # a container may have only the second one
    return NVIDIA if nvidia else AMD if (root / "dev/kfd").exists() else ""
