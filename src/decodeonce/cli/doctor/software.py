"""Checks of Python, torch with its devices, and the packages that decodeonce needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path

from decodeonce.cli.doctor.check import IMPORT_ERRORS, Finding, Level, bad, ok, warn
from decodeonce.host import installed_version

ANSWER = "found: "
# This runs in a separate process, because a torch that does not fit the machine may raise anything, hang or crash.
ASK_TORCH = f"""
import json, torch
backends = [getattr(torch, name) for name in ("cuda", "xpu") if hasattr(torch, name)]
here = [backend for backend in backends if backend.is_available()]
names = [backend.get_device_name(index) for backend in here for index in range(backend.device_count())]
print("\\n{ANSWER}" + json.dumps([torch.__version__, names]))
"""
TORCH_SECONDS = 180  # the first import from a cold network file system can take minutes
TORCH_PAGE = "https://pytorch.org/get-started/locally/"
PIL_ADVICE = 'see "pillow-simd or Pillow" in docs/start/install.md; finish unfinished builds before you change it'
FORMATS = {"webp": "WebP", "libtiff": "compressed TIFF"}  # by their names in PIL.features


def torch() -> Finding:
    """Check whether torch can be imported, and whether it finds the GPUs of this machine."""
    version = installed_version("torch")
    if version is None:
        return warn("not installed; the Loader needs it", f"install it: {TORCH_PAGE}")
    try:
        answer = subprocess.run(
            [sys.executable, "-c", ASK_TORCH],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=TORCH_SECONDS,
            check=False,
            cwd="/",  # a torch.py in the current folder must not be imported
        )
    except subprocess.TimeoutExpired:
        late = f"its import did not end within {TORCH_SECONDS} s"
        return bad(f"{version}, {late}", "check memory, process limits and the file system of torch")
    answers = [line for line in answer.stdout.splitlines() if line.startswith(ANSWER)]  # torch may print, too
    if answer.returncode or not answers:
        problem = (answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"])[-1]
        return bad(f"{version}, import fails: {problem}", f'check "address space", then reinstall torch: {TORCH_PAGE}')
    imported, devices = json.loads(answers[-1].removeprefix(ANSWER))
    return torch_check(imported, devices, answer.stderr, gpus_of_machine())


def torch_check(version: str, devices: list[str], stderr: str, gpus: str) -> Finding:
    """Return the finding for a torch that found `devices` and printed `stderr`, on a machine with `gpus` ("": none)."""
    warning = next((line.rpartition("Warning: ")[2] for line in stderr.splitlines() if "CUDA" in line), "")
    if devices:
        found = ", ".join(f"{count} x {name}" for name, count in Counter(devices).items())
        return Finding("warn" if warning else "ok", f"{version}: {found}", warning)
    if not gpus:
        return ok(f"{version}: CPU only, no GPU found")
    advice = f"check CUDA_VISIBLE_DEVICES, then the driver, then whether this torch is built for it: {TORCH_PAGE}"
    return warn(f"{version}: cannot use the {gpus} of this machine{': ' if warning else ''}{warning}", advice)


def gpus_of_machine(dev: Path = Path("/dev")) -> str:
    """Return whose GPUs have device files: NVIDIA, AMD, or "" for none."""
    nvidia = any(dev.glob("nvidia[0-9]*"))  # a container may have only the second one
    return "NVIDIA GPUs" if nvidia else "AMD GPUs" if (dev / "kfd").exists() else ""


def pillow() -> Finding:
    """Check which PIL is imported, that it is the only one, and that it uses this CPU."""
    from decodeonce.prep.pixels.versions import find_pillow

    found = find_pillow()
    if len(found.installed) > 1:
        both = " and ".join(f"{name} {metadata.version(name)}" for name in found.installed)
        return bad(f"{both} are both installed and overwrite each other", f"uninstall both, install one: {PIL_ADVICE}")
    if not found.name:
        missing = f"the files of {found.installed[0]} are missing" if found.installed else "not installed"
        return Finding("bad" if found.installed else "warn", f"{missing}; `prep build` needs it", PIL_ADVICE)
    if found.simd == "SSE4" and "avx2" in _cpu_flags():
        return warn(f"{found.description}, although this CPU has AVX2", PIL_ADVICE)
    return ok(found.description)


def formats_of_pil() -> Finding:
    """Check which formats Pillow was built without; images in those formats are rejected."""
    from PIL import features

    if missing := [name for module, name in FORMATS.items() if not features.check(module)]:
        return warn(f"built without {' and '.join(missing)}: such images are rejected", PIL_ADVICE)
    return ok(" and ".join(FORMATS.values()))


def package(name: str, missing: Level = "bad") -> Finding:
    """Check whether a package can be imported, and report its version; `missing` is the level if it is missing."""
    version = installed_version(name)
    if version is None:
        return Finding(missing, "not installed", f"pip install {name}")
    try:
        import_module(name)
    except IMPORT_ERRORS as error:
        lines = str(error).strip().splitlines()
        found = f"{version}, import fails: {lines[-1] if lines else type(error).__name__}"
        return bad(found, f"pip install --force-reinstall {name}")
    return ok(version)


def _cpu_flags() -> set[str]:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((set(line.split()) for line in lines if line.startswith("flags")), set())
    return set()
