"""What is installed: Python, torch with its devices, and the packages that decodeonce is made of."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decodeonce.cli.doctor.check import IMPORT_ERRORS, Finding, bad, ok, warn
from decodeonce.cli.doctor.machine import address_space
from decodeonce.host import installed_version

ANSWER = "found: "
# In a process of its own, for a torch that does not fit the machine may raise anything, hang, or crash.
ASK_TORCH = f"""
import json, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import torch
    backends = [getattr(torch, name) for name in ("cuda", "xpu") if hasattr(torch, name)]
    here = [backend for backend in backends if backend.is_available()]
    names = [backend.get_device_name(index) for backend in here for index in range(backend.device_count())]
print("\\n{ANSWER}" + json.dumps({{
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "devices": names,
    "warnings": [str(warning.message) for warning in told if "CUDA" in str(warning.message)],
}}))
"""
TORCH_SECONDS = 180  # a first import from a cold network file system takes minutes
TORCH_PAGE = "https://pytorch.org/get-started/locally/"


def python() -> Finding:
    """Which Python this is."""
    return ok(f"{platform.python_version()} ({sys.executable})")


def decodeonce() -> Finding:
    """Which version of decodeonce this is, and where it lies."""
    import decodeonce as package

    return ok(f"{package.__version__} ({Path(package.__file__).parent})")


def torch() -> Finding:
    """Whether torch can be imported, and which devices it finds of those that are here."""
    version = installed_version("torch")
    if version is None:
        return warn("not installed, so no Loader here", f"install it as {TORCH_PAGE} says")
    try:
        asked = subprocess.run(
            [sys.executable, "-c", ASK_TORCH],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=TORCH_SECONDS,
            check=False,
            cwd="/",  # what lies in this folder is no torch
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        found = f"{version}, cannot be tried: {error}".partition(" '-c'")[0]
        return bad(found, "look at memory, process limits and torch's file system")
    answers = [line for line in asked.stdout.splitlines() if line.startswith(ANSWER)]  # torch may print, too
    if asked.returncode or not answers:
        told = (asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"])[-1]
        again = f"install it again: {TORCH_PAGE}"
        advice = again if address_space().level == "ok" else f"see address space first; else {again}"
        return bad(f"{version}, import fails: {told}", advice)
    return torch_check(json.loads(answers[-1].removeprefix(ANSWER)), _gpus())


def torch_check(found: dict[str, Any], gpus: str) -> Finding:
    """What becomes of `found`, as ASK_TORCH prints it, on a machine with such GPUs ("" for none)."""
    kind = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else ""
    build = f"{found['version']}{', ' if kind else ''}{kind}"
    told = " ".join(found["warnings"][:1]).split("\n")[0]
    if found["devices"]:
        devices = ", ".join(f"{count} x {name}" for name, count in Counter(found["devices"]).items())
        return Finding("warn" if told else "ok", f"{build}: {devices}", told)
    if not gpus:
        return ok(f"{build}: CPU alone, there is no GPU here")
    if hidden := [name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in os.environ]:
        setting = f"{hidden[0]}={os.environ[hidden[0]]}"
        return warn(f"{build}: sees none of the {gpus} here ({setting})", f"unset {hidden[0]}")
    if not kind:
        return warn(f"{build}: built without {gpus} support", f"for this GPU: {TORCH_PAGE}")
    newer = f"a newer driver, or a torch for this one: {TORCH_PAGE}"
    return bad(f"{build}: cannot use the {gpus} here{': ' if told else ''}{told}", newer)


def _gpus() -> str:
    """Whose GPUs the kernel knows; "" for none, or where nobody can tell."""
    return "NVIDIA GPUs" if Path("/dev/nvidia0").exists() else "AMD GPUs" if Path("/dev/kfd").exists() else ""


def simplejpeg() -> Finding:
    """Whether JPEGs can be decoded, and by which libjpeg-turbo."""
    version = installed_version("simplejpeg")
    library = find_spec("simplejpeg._jpeg") if find_spec("simplejpeg") else None
    if version is None or library is None or library.origin is None:
        advice = "pip install simplejpeg"  # an extra would bring a second PIL
        return warn("not installed, so no `prep build` here", advice)
    written = re.search(rb"libjpeg-turbo version ([0-9.]+)", Path(library.origin).read_bytes())
    inside = f"libjpeg-turbo {written[1].decode()} in it" if written else "of no known libjpeg-turbo"
    return ok(f"{version}, {inside}")


def package(name: str) -> Finding:
    """Whether a package can be imported, and its version."""
    version = installed_version(name)
    if version is None:
        return bad("not installed", f"pip install {name}")
    try:
        import_module(name)
    except IMPORT_ERRORS as error:
        told = str(error).strip().splitlines()
        found = f"{version}, import fails: {told[-1] if told else type(error).__name__}"
        return bad(found, f"pip install --force-reinstall {name}")
    return ok(version)
