"""Checks of PIL: which one is imported, how it was built, and whether two are installed."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from decodeonce.cli.doctor.check import Finding, bad, ok, warn

if TYPE_CHECKING:
    from decodeonce.prep.pixels.versions import Pillow

FINISH_FIRST = "(first finish unfinished builds: they resume only with the same decoders)"
RECOMPILE = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary pillow-simd pillow-simd"
CC = 'CC="cc -mavx2" '
FOR_AVX2 = f"{CC}{RECOMPILE} {FINISH_FIRST}"
# In this order, Pillow stays installed if the compilation fails.
TO_SIMD = "pip wheel --no-deps --no-cache-dir pillow-simd && pip uninstall -y pillow && pip install pillow_simd-*.whl"
NO_COMPILER = (
    'keep it: this is what ".[prep-pillow]" installs. '
    "pillow-simd resizes in a third of the time, but needs a C compiler, and none was found"
)
# For each name in PIL.features: the format, and the packages on Debian and on Fedora.
FORMATS = {
    "webp": ("WebP", "libwebp-dev", "libwebp-devel"),
    "libtiff": ("compressed TIFF", "libtiff-dev", "libtiff-devel"),
}
UNINSTALL = "pip uninstall -y pillow pillow-simd, then"
NEEDS_PILLOW = re.compile(r"pillow(?![\w.-])(?!.*\bextra\b)", re.IGNORECASE)


def pillow() -> Finding:
    """Check which PIL is imported, and compare its SIMD level with the CPU."""
    found = _imported_pil()
    if not found.name and found.installed:  # for example after one of two was uninstalled
        return bad(f"the files of {found.installed[0]} are missing", f"{UNINSTALL} {_install(found)}")
    if not found.name:
        return warn("not installed; `prep build` needs it", _install(found))
    if len(found.installed) > 1:
        return warn(found.description, 'see "one pil"')
    if found.simd == "SSE4" and "avx2" in _cpu_flags():
        return warn(f"{found.description}, although this CPU has AVX2", FOR_AVX2)
    if found.name == "pillow" and platform.machine() == "x86_64" and not _packages_that_need_pillow():
        advice = f"{CC if 'avx2' in _cpu_flags() else ''}{TO_SIMD}: resizes in a third of the time {FINISH_FIRST}"
        return warn(found.description, advice if _has_compiler() else NO_COMPILER)
    return ok(found.description)


def one_pil() -> Finding:
    """Check whether both Pillow and pillow-simd are installed: each overwrites files of the other."""
    found = _imported_pil()
    if len(found.installed) < 2:
        return ok(found.installed[0] if found.installed else "none")
    both = " and ".join(f"{name} {metadata.version(name)}" for name in found.installed)
    return bad(f"{both} are both installed and overwrite each other", f"{UNINSTALL} {_install(found)}")


def libjpeg_of_pil() -> Finding:
    """Check which libjpeg Pillow uses; it decodes unusual images."""
    found = _imported_pil()
    if not found.name:
        return warn("no Pillow", 'see "pillow"')
    try:
        from PIL import features
    except ImportError as error:
        return bad(f"Pillow cannot be imported: {error}", f"{UNINSTALL} {_install(found)}")
    turbo = features.version("libjpeg_turbo")
    if turbo:
        return ok(f"libjpeg-turbo {turbo}")
    advice = "unusual images may get different pixels than elsewhere; build Pillow with the headers of libjpeg-turbo"
    return warn(f"libjpeg {features.version('jpg') or 'is missing'}, not -turbo", advice)


def formats_of_pil() -> Finding:
    """Check which formats Pillow was built without; images in those formats are rejected."""
    found = _imported_pil()
    try:
        from PIL import features
    except ImportError:
        return warn("no Pillow", 'see "pillow"')
    missing = [names for module, names in FORMATS.items() if not features.check(module)]
    if not missing:
        return ok(" and ".join(names[0] for names in FORMATS.values()))
    formats, debian, fedora = (list(names) for names in zip(*missing, strict=True))
    packages = f"install {' '.join(debian)} (Fedora, RHEL: {' '.join(fedora)})"
    command = f"{CC if found.simd == 'AVX2' else ''}{RECOMPILE}"
    if found.name == "pillow":
        packages, command = "use the wheel", "pip install --force-reinstall --no-deps --only-binary pillow pillow"
    text = f"{packages}, then {command} {FINISH_FIRST}"
    return warn(f"built without {' and '.join(formats)}: such images are rejected", text)


def _imported_pil() -> Pillow:
    from decodeonce.prep.pixels.versions import find_pillow

    return find_pillow()


def _install(found: Pillow) -> str:
    """Return the pip command for the fitting extra; if PIL was compiled for AVX2, the new one is, too."""
    fitting = _fitting_extra()
    compiled = found.simd == "AVX2" and "prep-pillow" not in fitting
    command = f"{CC}pip install --no-cache-dir --no-binary pillow-simd" if compiled else "pip install"
    return f"{command} {fitting}"


def _fitting_extra() -> str:
    """Return the extra to install: pillow-simd only if there is a compiler and no package requires Pillow by name."""
    if needed := _packages_that_need_pillow():
        return f'".[prep-pillow]" ({needed[0]} needs pillow)'
    return '".[prep]"' if _has_compiler() else '".[prep-pillow]" (no C compiler found)'


def _has_compiler() -> bool:
    """Return whether pip finds the C compiler that it needs for pillow-simd, if it needs one."""
    if platform.machine() != "x86_64":
        return True
    return which((os.environ.get("CC") or "cc").split()[0]) is not None


def _packages_that_need_pillow() -> list[str]:
    """Return the installed packages that require the distribution named pillow."""
    found = metadata.distributions()
    needing = {dist.metadata["Name"] for dist in found if any(map(NEEDS_PILLOW.match, dist.requires or ()))}
    return sorted(needing - {"decodeonce", None})


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
