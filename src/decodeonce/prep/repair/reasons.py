"""Say why rows are still damaged, in one sentence per reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from decodeonce.prep.pixels.versions import decoder_versions
from decodeonce.store.manifest import REBUILD, Manifest
from decodeonce.store.verify import ranges_text, row_ranges

FROM_COPY = "restore it from a copy of the store (or pass the copy as --from)"
COPY = f"{FROM_COPY}, or {REBUILD}"


class Reason(NamedTuple):
    """Why a row cannot be repaired, and the name of its image if that matters."""

    text: str
    name: str = ""


def row_sentences(reasons: Mapping[int, Reason]) -> Iterator[str]:
    """Yield a sentence for each reason, with its rows and the name of the first image. The rows must be sorted."""
    by_text: dict[str, list[int]] = {}
    for row, reason in reasons.items():
        by_text.setdefault(reason.text, []).append(row)
    for text, rows in by_text.items():
        names = list(dict.fromkeys(reasons[row].name for row in rows if reasons[row].name))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{ranges_text(row_ranges(rows))}: {f'{names[0]}{more}: ' if names else ''}{text}"


def versions_to_install(manifest: Manifest) -> str:
    """Return which library versions to install to decode as the build did; empty if they are installed."""
    written = manifest.recipe.get("decoders")
    if not isinstance(written, dict):
        return ""
    installed = decoder_versions(manifest.container)
    missing = [f"{name} {version}" for name, version in written.items() if installed.get(name) != version]
    instead = [f"{name} {version}" for name, version in installed.items() if written.get(name) != version]
    return f"install {', '.join(missing)}, as used by the build (installed: {', '.join(instead)})" if missing else ""
