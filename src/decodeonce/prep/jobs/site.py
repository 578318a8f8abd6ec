"""Site profiles: what a computing centre wants of every job, a TOML file each, and the user's own."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from decodeonce.errors import BuildError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEDULERS = ("slurm", "pbs")
DEFAULTS = ("account", "queue", "time", "cpus", "mem", "nodes", "max_running")


@dataclass(frozen=True)
class Site:
    """A centre's profile.

    scheduler: "slurm" or "pbs". source: the page that says all this. queue_flag: what a queue's name is given with.
    directives: of every script. setup: shell lines before every command. launch: what starts one process a node, with
    {nodes} and {cpus}. needs: flags that must be given. advice: sentences for the user. defaults: values of flags.
    """

    name: str
    scheduler: str
    source: str
    queue_flag: str
    launch: str
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)

    def launched(self, command: str, *, nodes: int, cpus: int) -> str:
        """The shell command that runs `command` once on each of so many nodes."""
        launch = self.launch.replace("{nodes}", str(nodes)).replace("{cpus}", str(cpus))
        return f"{launch} {command}"


def site_names() -> list[str]:
    """The profiles that come with decodeonce."""
    found = (entry.name for entry in _profiles().iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def read_site(site: str) -> Site:
    """The profile of this name, or in this file, which has a slash or .toml in it; BuildError says what is wrong."""
    if "/" in site or site.endswith(".toml"):
        path = Path(site)
        try:
            return parse_site(path.read_text("utf-8"), site)
        except (OSError, UnicodeDecodeError) as error:
            raise BuildError(f"{site}: {error}; expected a site profile") from None
    if site not in site_names():
        raise BuildError(f"no site {site!r}; expected {', '.join(site_names())}, or the path of a profile of your own")
    return parse_site(_profiles().joinpath(f"{site}.toml").read_text("utf-8"), site)


def parse_site(text: str, name: str) -> Site:
    """The profile in this text; `name` names it in errors."""
    try:
        facts = tomllib.loads(text)
        _check(facts)
    except (ValueError, TypeError) as error:
        raise BuildError(f"{name}: {error}; see the profiles beside {_profiles()}") from None
    lists = {key: tuple(facts[key]) for key in ("directives", "setup", "needs", "advice") if key in facts}
    flag = "--partition" if facts["scheduler"] == "slurm" else "-q"
    return Site(**{"queue_flag": flag, **facts, **lists})


def _profiles() -> Any:
    return resources.files("decodeonce.prep.jobs").joinpath("sites")


def _check(facts: dict[str, Any]) -> None:
    known = {entry.name for entry in fields(Site)}
    if unknown := sorted(set(facts) - known):
        raise ValueError(f"unknown key {unknown[0]!r}, expected {', '.join(sorted(known))}")
    if missing := [key for key in ("name", "scheduler", "source", "launch") if not isinstance(facts.get(key), str)]:
        raise ValueError(f"{missing[0]} is {facts.get(missing[0])!r}, expected a text")
    if several := [key for key, value in facts.items() if isinstance(value, str) and not value.isprintable()]:
        raise ValueError(f"{several[0]} is {facts[several[0]]!r}, expected one line")
    if facts["scheduler"] not in SCHEDULERS:
        raise ValueError(f"scheduler is {facts['scheduler']!r}, expected {' or '.join(SCHEDULERS)}")
    for key in ("directives", "setup", "needs", "advice"):
        value = facts.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and "\n" not in item for item in value):
            raise ValueError(f"{key} is {value!r}, expected a list of texts of one line")
    defaults = facts.get("defaults", {})
    kinds = {name: int if name in ("cpus", "nodes", "max_running") else str for name in DEFAULTS}
    if not isinstance(defaults, dict) or not isinstance(facts.get("queue_flag", ""), str):
        raise ValueError("expected [defaults] as a table, and queue_flag as a text")
    if wrong := [name for name, value in defaults.items() if name in kinds and not isinstance(value, kinds[name])]:
        raise ValueError(f"{wrong[0]} is {defaults[wrong[0]]!r}, expected {kinds[wrong[0]].__name__}")
    if unknown := sorted((set(defaults) | set(facts.get("needs", []))) - set(DEFAULTS)):
        raise ValueError(f"no flag {unknown[0]!r}, expected some of {', '.join(DEFAULTS)}")
    if unknown := sorted(set(re.findall(r"\{(\w*)\}", facts["launch"])) - {"nodes", "cpus"}):
        raise ValueError(f"launch has {{{unknown[0]}}}, expected {{nodes}} and {{cpus}}")
