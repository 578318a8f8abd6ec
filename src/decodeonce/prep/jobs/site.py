"""Site profiles: TOML files with the settings that a computing center needs in every job."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.prep.jobs import SCHEDULERS
from decodeonce.prep.jobs.base import Site
from decodeonce.store.layout import Json

PROFILES = Path(__file__).with_name("sites")  # those that come with decodeonce
# The keys of a profile and of its table [defaults], with the types of their values.
LISTS = ("directives", "array_directives", "setup", "needs", "advice")
KEYS = {
    **dict.fromkeys(("name", "scheduler", "source", "queue_flag", "launch"), str),
    **dict.fromkeys(LISTS, list),
    "defaults": dict,
}
FLAGS = {"account": str, "queue": str, "time": str, "cpus": int, "mem": str, "nodes": int, "max_running": int}


def site_names() -> list[str]:
    """Return the names of the profiles that come with decodeonce."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def read_site(site: str) -> Site:
    """Read a profile that comes with decodeonce, by name, or a file if `site` has a slash or ends in .toml."""
    if "/" in site or site.endswith(".toml"):
        path = Path(site)
        try:
            return parse_site(path.read_text("utf-8"), site)
        except (OSError, UnicodeDecodeError) as error:
            raise BuildError(f"{site}: {error}; expected a site profile") from None
    if site not in site_names():
        raise BuildError(f"unknown site {site!r}; expected {', '.join(site_names())}, or the path of your own profile")
    return parse_site((PROFILES / f"{site}.toml").read_text("utf-8"), site)


def parse_site(text: str, name: str) -> Site:
    """Parse the text of a profile; errors begin with `name`."""
    try:
        profile = tomllib.loads(text)
        _check(profile)
        lists = {key: tuple(profile[key]) for key in LISTS if key in profile}
        return Site(**{"queue_flag": SCHEDULERS[profile["scheduler"]].queue_flag, **profile, **lists})
    except (ValueError, TypeError) as error:  # TypeError: a key is missing
        raise BuildError(f"{name}: {error}; see the profiles in {PROFILES}") from None


def _check(profile: Json) -> None:
    _check_types(profile, KEYS)
    _check_types(profile.get("defaults", {}), FLAGS)
    if profile.get("scheduler") not in SCHEDULERS:
        raise ValueError(f"scheduler is {profile.get('scheduler')!r}, expected {' or '.join(SCHEDULERS)}")
    if unknown := sorted({*profile.get("needs", [])} - set(FLAGS)):
        raise ValueError(f"unknown flag {unknown[0]!r}, expected one of {', '.join(FLAGS)}")
    if unknown := sorted(set(re.findall(r"\{(\w*)\}", profile.get("launch", ""))) - {"nodes", "cpus"}):
        raise ValueError(f"launch has {{{unknown[0]}}}, expected only {{nodes}} and {{cpus}}")


def _check_types(found: Json, types: Mapping[str, type]) -> None:
    for key, value in found.items():
        if key not in types:
            raise ValueError(f"unknown key {key!r}, expected one of {', '.join(types)}")
        lines = value if isinstance(value, list) else [str(value)]
        if type(value) is not types[key] or not all(isinstance(one, str) and one.isprintable() for one in lines):
            raise ValueError(f"{key} is {value!r}, expected {types[key].__name__}, and text on a single line")
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{key} is {value}, expected at least 1")
