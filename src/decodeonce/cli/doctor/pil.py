"""Which PIL is live, how it was built, and whether it is the only one."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

from decodeonce.cli.doctor.check import Check

FOR_AVX2 = (
    'CC="cc -mavx2" pip install --force-reinstall --no-deps --no-cache-dir --no-binary pillow-simd '
    "pillow-simd (a store that is being built has to be finished first: other decoders, other plan)"
)
UNINSTALL = "pip uninstall -y pillow pillow-simd, then pip install"
NEEDS_PILLOW = re.compile(r"pillow(?![\w.-])(?!.*\bextra\b)", re.IGNORECASE)


def pillow() -> Check:
    """The PIL that an import gives, and its SIMD level against the CPU's."""
    from decodeonce.prep.pillow import find_pillow

    found = find_pillow()
    if not found.name and found.installed:  # as after an uninstall of one of two
        return Check("pillow", "bad", f"the files of {found.installed[0]} are gone", f"{UNINSTALL} {_fitting()}")
    if not found.name:
        return Check("pillow", "warn", "not installed, so no `prep build` here", f"pip install {_fitting()}")
    if len(found.installed) > 1:
        return Check("pillow", "warn", found.description, "see one pil")
    if found.simd == "SSE4" and "avx2" in _cpu_flags():
        return Check("pillow", "warn", f"{found.description}, though this CPU has AVX2", FOR_AVX2)
    if found.name == "pillow" and platform.machine() == "x86_64" and not _who_needs_pillow():
        advice = 'pip uninstall -y pillow, then pip install "decodeonce[prep]": resizes in a third of the time'
        return Check("pillow", "warn", found.description, advice)
    return Check("pillow", "ok", found.description)


def one_pil() -> Check:
    """Whether Pillow and pillow-simd are installed over each other: some files are then of one, some of the other."""
    from decodeonce.prep.pillow import find_pillow

    installed = find_pillow().installed
    if len(installed) < 2:
        return Check("one pil", "ok", installed[0] if installed else "none")
    both = " and ".join(f"{name} {metadata.version(name)}" for name in installed)
    return Check("one pil", "bad", f"{both} are installed over each other", f"{UNINSTALL} {_fitting()}")


def libjpeg_of_pil() -> Check:
    """Which libjpeg Pillow decodes with: odd pictures go through it."""
    from decodeonce.prep.pillow import find_pillow

    if not find_pillow().name:
        return Check("libjpeg of pil", "warn", "no Pillow", "see pillow")
    try:
        from PIL import features
    except ImportError as error:
        return Check("libjpeg of pil", "bad", f"Pillow cannot be imported: {error}", f"{UNINSTALL} {_fitting()}")
    turbo = features.version("libjpeg_turbo")
    if turbo:
        return Check("libjpeg of pil", "ok", f"libjpeg-turbo {turbo}")
    advice = "odd pictures may get other bytes than elsewhere; build Pillow where libjpeg-turbo's headers are"
    return Check("libjpeg of pil", "warn", f"libjpeg {features.version('jpg') or 'is missing'}, not -turbo", advice)


def _fitting() -> str:
    """What to install: where another package wants Pillow by that name, pillow-simd would have it installed, too."""
    needed = _who_needs_pillow()
    return f'"decodeonce[prep-pillow]" ({needed[0]} needs pillow)' if needed else '"decodeonce[prep]"'


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
