"""Site profiles: TOML files with the settings that a computing centre needs in every job."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

from decodeonce.errors import BuildError
from decodeonce.store.layout import Json

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILES = Path(__file__).with_name("sites")  # those that come with decodeonce
SCHEDULERS = ("slurm", "pbs")
LISTS = ("directives", "array_directives", "setup", "needs", "advice")
DEFAULTS = ("account", "queue", "time", "cpus", "mem", "nodes", "max_running")


@dataclass(frozen=True)
class Site:
    """The profile of a site.

    Args:
        name: Name of the site.
        scheduler: "slurm" or "pbs".
        source: URL of the documentation that the profile follows.
        queue_flag: Option of the batch system that takes the name of a queue.
        launch: Command that starts one process per node; {nodes} and {cpus} are replaced.
        directives: Directives for every job script.
        setup: Shell lines that run before every command.
        needs: Flags of `prep submit` that the site requires, without dashes.
        advice: Sentences that `prep submit` prints.
        defaults: Default values of flags, by name.
        array_directives: Directives for the script of the array only.
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
    defaults: dict[str, int | str] = field(default_factory=dict)
    array_directives: tuple[str, ...] = ()

    def directives_of(self, array: bool) -> tuple[str, ...]:
        """Return the directives of the script of the array, or of other scripts."""
        return (*self.directives, *self.array_directives) if array else self.directives

    def launch_command(self, command: str, *, nodes: int, cpus: int) -> str:
        """Return the shell command that runs `command` once on each of `nodes` nodes."""
        launch = self.launch.replace("{nodes}", str(nodes)).replace("{cpus}", str(cpus))
        return f"{launch} {command}"


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
        facts = tomllib.loads(text)
        _check(facts)
    except (ValueError, TypeError) as error:
        raise BuildError(f"{name}: {error}; see the profiles in {PROFILES}") from None
    lists = {key: tuple(facts[key]) for key in LISTS if key in facts}
    flag = "--partition" if facts["scheduler"] == "slurm" else "-q"
    return Site(**{"queue_flag": flag, **facts, **lists})


def _check(facts: Json) -> None:
    known = {entry.name for entry in fields(Site)}
    if unknown := sorted(set(facts) - known):
        raise ValueError(f"unknown key {unknown[0]!r}, expected {', '.join(sorted(known))}")
    if missing := [key for key in ("name", "scheduler", "source", "launch") if not isinstance(facts.get(key), str)]:
        raise ValueError(f"{missing[0]} is {facts.get(missing[0])!r}, expected a string")
    if multiline := [key for key, value in facts.items() if isinstance(value, str) and not value.isprintable()]:
        raise ValueError(f"{multiline[0]} is {facts[multiline[0]]!r}, expected a single printable line")
    if facts["scheduler"] not in SCHEDULERS:
        raise ValueError(f"scheduler is {facts['scheduler']!r}, expected {' or '.join(SCHEDULERS)}")
    for key in LISTS:
        value = facts.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and "\n" not in item for item in value):
            raise ValueError(f"{key} is {value!r}, expected a list of single-line strings")
    defaults = facts.get("defaults", {})
    if not isinstance(defaults, dict) or not isinstance(facts.get("queue_flag", ""), str):
        raise ValueError("expected [defaults] to be a table and queue_flag to be a string")
    _check_flags(defaults, facts.get("needs", []))
    if unknown := sorted(set(re.findall(r"\{(\w*)\}", facts["launch"])) - {"nodes", "cpus"}):
        raise ValueError(f"launch has {{{unknown[0]}}}, expected only {{nodes}} and {{cpus}}")


def _check_flags(defaults: dict[str, object], needs: list[str]) -> None:
    kinds = {name: int if name in ("cpus", "nodes", "max_running") else str for name in DEFAULTS}
    if wrong := [name for name, value in defaults.items() if name in kinds and not isinstance(value, kinds[name])]:
        raise ValueError(f"{wrong[0]} is {defaults[wrong[0]]!r}, expected {kinds[wrong[0]].__name__}")
    if unknown := sorted({*defaults, *needs} - set(DEFAULTS)):
        raise ValueError(f"unknown flag {unknown[0]!r}, expected one of {', '.join(DEFAULTS)}")
