"""Checks of Python, torch with its devices, and the packages that decodeonce needs."""

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
from decodeonce.cli.doctor.gpus import device_files
from decodeonce.cli.doctor.machine import address_space
from decodeonce.host import installed_version

ANSWER = "found: "
# This runs in a separate process, because a torch that does not fit the machine may raise anything, hang or crash.
ASK_TORCH = f"""
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    backends = [getattr(torch, name) for name in ("cuda", "xpu") if hasattr(torch, name)]
    here = [backend for backend in backends if backend.is_available()]
    names = [backend.get_device_name(index) for backend in here for index in range(backend.device_count())]
print("\\n{ANSWER}" + json.dumps({{
    "version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "devices": names,
    "warnings": [str(warning.message) for warning in caught if "CUDA" in str(warning.message)],
}}))
"""
TORCH_SECONDS = 180  # the first import from a cold network file system can take minutes
TORCH_PAGE = "https://pytorch.org/get-started/locally/"


def python() -> Finding:
    """Report the version of Python."""
    return ok(f"{platform.python_version()} ({sys.executable})")


def decodeonce() -> Finding:
    """Report the version of decodeonce and its folder."""
    import decodeonce as package

    return ok(f"{package.__version__} ({Path(package.__file__).parent})")


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
    except (OSError, subprocess.TimeoutExpired) as error:
        late = f"its import did not end within {TORCH_SECONDS} s"
        problem = late if isinstance(error, subprocess.TimeoutExpired) else f"it cannot be checked: {error}"
        return bad(f"{version}, {problem}", "check memory, process limits and the file system of torch")
    answers = [line for line in answer.stdout.splitlines() if line.startswith(ANSWER)]  # torch may print, too
    if answer.returncode or not answers:
        problem = (answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"])[-1]
        again = f"reinstall it: {TORCH_PAGE}"
        advice = again if address_space().level == "ok" else f'see "address space"; if that does not help, {again}'
        return bad(f"{version}, import fails: {problem}", advice)
    return torch_check(json.loads(answers[-1].removeprefix(ANSWER)), device_files())


def torch_check(found: dict[str, Any], gpus: str) -> Finding:
    """Return the finding for `found`, which ASK_TORCH prints, on a machine with `gpus` ("" for none)."""
    kind = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else ""
    build = f"{found['version']}{', ' if kind else ''}{kind}"
    warning = " ".join(found["warnings"][:1]).split("\n")[0]
    if found["devices"]:
        devices = ", ".join(f"{count} x {name}" for name, count in Counter(found["devices"]).items())
        return Finding("warn" if warning else "ok", f"{build}: {devices}", warning)
    if not gpus:
        return ok(f"{build}: CPU only, no GPU found")
    if hidden := [name for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in os.environ]:
        setting = f"{hidden[0]}={os.environ[hidden[0]]}"
        return warn(f"{build}: does not see the {gpus} of this machine ({setting})", f"unset {hidden[0]}")
    if not kind:
        return warn(f"{build}: built without {gpus} support", f"install a torch for this GPU: {TORCH_PAGE}")
    newer = f"install a newer driver, or a torch for this driver: {TORCH_PAGE}"
    return bad(f"{build}: cannot use the {gpus} of this machine{': ' if warning else ''}{warning}", newer)


def simplejpeg() -> Finding:
    """Check whether simplejpeg is installed, and with which libjpeg-turbo."""
    version = installed_version("simplejpeg")
    library = find_spec("simplejpeg._jpeg") if find_spec("simplejpeg") else None
    if version is None or library is None or library.origin is None:
        advice = "pip install simplejpeg"  # an extra could install a second PIL
        return warn("not installed, so no `prep build` here", advice)
    written = re.search(rb"libjpeg-turbo version ([0-9.]+)", Path(library.origin).read_bytes())
    inside = f"with libjpeg-turbo {written[1].decode()}" if written else "with an unknown libjpeg-turbo"
    return ok(f"{version}, {inside}")


def package(name: str) -> Finding:
    """Check whether a package can be imported, and report its version."""
    version = installed_version(name)
    if version is None:
        return bad("not installed", f"pip install {name}")
    try:
        import_module(name)
    except IMPORT_ERRORS as error:
        lines = str(error).strip().splitlines()
        found = f"{version}, import fails: {lines[-1] if lines else type(error).__name__}"
        return bad(found, f"pip install --force-reinstall {name}")
    return ok(version)
