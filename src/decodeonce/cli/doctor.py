"""`prep doctor`: is this machine set up."""

from __future__ import annotations

from typing import Any

from decodeonce.cli.output import JsonFlag, show_facts


def doctor(as_json: JsonFlag = False) -> None:
    """What this machine has for building and training: decoders, cores, memory, limits, launcher."""
    facts, problems = examine()
    show_facts({**facts, "problems": problems}, as_json=as_json)


def examine() -> tuple[dict[str, Any], list[str]]:
    """What was found, and what should be mended (a sentence with the command each)."""
    import platform
    import resource

    import decodeonce
    from decodeonce.host import available_memory, installed_version, usable_cores
    from decodeonce.launch import find_rank

    problems: list[str] = []
    versions = {name: installed_version(name) for name in ("numpy", "torch", "h5py", "xxhash", "simplejpeg")}
    if versions["simplejpeg"] is None:
        problems.append('no JPEG decoder, so no `prep build` here: pip install "decodeonce[prep]"')
    facts = {
        "decodeonce": decodeonce.__version__,
        "python": platform.python_version(),
        **{name: version or "not installed" for name, version in versions.items()},
        "pillow": _pillow(problems),
        "usable_cores": usable_cores(),
        "available_memory_gb": round((available_memory() or 0) / 1e9, 1),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "launcher": str(find_rank()),
        "task": _task(problems),
    }
    return facts, problems


def _task(problems: list[str]) -> str:
    """The share of a build that `prep work` would do here without being told."""
    from decodeonce.launch import find_task

    try:
        return str(find_task() or "none: prep work does all that is not done")
    except ValueError as error:
        problems.append(f"prep work needs --task I --tasks N here: {error}")
        return "unknown"


def _pillow(problems: list[str]) -> str:
    """Which PIL is live, its version and SIMD level; says so where two were installed over each other."""
    from decodeonce.prep.pillow import find_pillow

    found = find_pillow()
    if len(found.installed) > 1:
        problems.append(
            "Pillow and pillow-simd are installed over each other: pip uninstall -y pillow pillow-simd, "
            'then pip install "decodeonce[prep]"'
        )
    if not found.installed:
        problems.append('no Pillow, so no `prep build` here: pip install "decodeonce[prep]"')
    return found.description
