"""Which PIL is live, how it was built, and whether it is the only one."""

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

FINISH_FIRST = "(finish stores that are being built first: other decoders, other plan)"
RECOMPILE = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary pillow-simd pillow-simd"
CC = 'CC="cc -mavx2" '
FOR_AVX2 = f"{CC}{RECOMPILE} {FINISH_FIRST}"
# In this order a compilation that fails leaves Pillow installed.
TO_SIMD = "pip wheel --no-deps --no-cache-dir pillow-simd && pip uninstall -y pillow && pip install pillow_simd-*.whl"
NO_COMPILER = (
    'keep it: this is what "decodeonce[prep-pillow]" installs. '
    "pillow-simd resizes in a third of the time, but needs a C compiler, and there is none here"
)
# By what PIL.features calls them: the format, and the packages on Debian and on Fedora.
FORMATS = {
    "webp": ("WebP", "libwebp-dev", "libwebp-devel"),
    "libtiff": ("compressed TIFF", "libtiff-dev", "libtiff-devel"),
}
UNINSTALL = "pip uninstall -y pillow pillow-simd, then"
NEEDS_PILLOW = re.compile(r"pillow(?![\w.-])(?!.*\bextra\b)", re.IGNORECASE)


def pillow() -> Finding:
    """The PIL that an import gives, and its SIMD level against the CPU's."""
    found = _live()
    if not found.name and found.installed:  # as after an uninstall of one of two
        return bad(f"the files of {found.installed[0]} are gone", f"{UNINSTALL} {_install(found)}")
    if not found.name:
        return warn("not installed, so no `prep build` here", _install(found))
    if len(found.installed) > 1:
        return warn(found.description, "see one pil")
    if found.simd == "SSE4" and "avx2" in _cpu_flags():
        return warn(f"{found.description}, though this CPU has AVX2", FOR_AVX2)
    if found.name == "pillow" and platform.machine() == "x86_64" and not _who_needs_pillow():
        advice = f"{CC if 'avx2' in _cpu_flags() else ''}{TO_SIMD}: resizes in a third of the time {FINISH_FIRST}"
        return warn(found.description, advice if _has_compiler() else NO_COMPILER)
    return ok(found.description)


def one_pil() -> Finding:
    """Whether Pillow and pillow-simd are installed over each other: some files are then of one, some of the other."""
    found = _live()
    if len(found.installed) < 2:
        return ok(found.installed[0] if found.installed else "none")
    both = " and ".join(f"{name} {metadata.version(name)}" for name in found.installed)
    return bad(f"{both} are installed over each other", f"{UNINSTALL} {_install(found)}")


def libjpeg_of_pil() -> Finding:
    """Which libjpeg Pillow decodes with: odd pictures go through it."""
    found = _live()
    if not found.name:
        return warn("no Pillow", "see pillow")
    try:
        from PIL import features
    except ImportError as error:
        return bad(f"Pillow cannot be imported: {error}", f"{UNINSTALL} {_install(found)}")
    turbo = features.version("libjpeg_turbo")
    if turbo:
        return ok(f"libjpeg-turbo {turbo}")
    advice = "odd pictures may get other bytes than elsewhere; build Pillow where libjpeg-turbo's headers are"
    return warn(f"libjpeg {features.version('jpg') or 'is missing'}, not -turbo", advice)


def formats_of_pil() -> Finding:
    """Which formats Pillow was built without: pictures in them are rejected."""
    found = _live()
    try:
        from PIL import features
    except ImportError:
        return warn("no Pillow", "see pillow")
    missing = [names for module, names in FORMATS.items() if not features.check(module)]
    if not missing:
        return ok(" and ".join(names[0] for names in FORMATS.values()))
    formats, debian, fedora = (list(names) for names in zip(*missing, strict=True))
    packages = f"install {' '.join(debian)} (Fedora, RHEL: {' '.join(fedora)})"
    command = f"{CC if found.simd == 'AVX2' else ''}{RECOMPILE}"
    if found.name == "pillow":
        packages, command = "take the wheel", "pip install --force-reinstall --no-deps --only-binary pillow pillow"
    text = f"{packages}, then {command} {FINISH_FIRST}"
    return warn(f"built without {' and '.join(formats)}: such pictures are rejected", text)


def _live() -> Pillow:
    from decodeonce.prep.pixels.versions import find_pillow

    return find_pillow()


def _install(found: Pillow) -> str:
    """The pip command for the extra that fits here; one compiled for AVX2 replaces one that was."""
    fitting = _fitting()
    compiled = found.simd == "AVX2" and "prep-pillow" not in fitting
    command = f"{CC}pip install --no-cache-dir --no-binary pillow-simd" if compiled else "pip install"
    return f"{command} {fitting}"


def _fitting() -> str:
    """What to install: pillow-simd is for where a compiler is, and no other package asks for Pillow by that name."""
    if needed := _who_needs_pillow():
        return f'"decodeonce[prep-pillow]" ({needed[0]} needs pillow)'
    return '"decodeonce[prep]"' if _has_compiler() else '"decodeonce[prep-pillow]" (there is no C compiler here)'


def _has_compiler() -> bool:
    """Whether pip finds a C compiler here, if it needs one for pillow-simd."""
    if platform.machine() != "x86_64":
        return True
    return which((os.environ.get("CC") or "cc").split()[0]) is not None


def _who_needs_pillow() -> list[str]:
    """Packages that cannot be installed without the distribution called pillow."""
    found = metadata.distributions()
    needing = {dist.metadata["Name"] for dist in found if any(map(NEEDS_PILLOW.match, dist.requires or ()))}
    return sorted(needing - {"decodeonce", None})


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
