"""Signed JSON, the form of store.json and stage.json: one serialisation, with a digest of all its other facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from decodeonce.errors import StoreError
from decodeonce.store.hashing import hexdigest

MAX_BYTES = 64 << 20  # of a file, which is read whole: 200,000 shards and 100,000 classes take 45 MB


def canonical(facts: dict[str, Any]) -> bytes:
    """The only serialisation that readers accept: sorted keys, an indent of one space per level, UTF-8, a newline.

    A byte of a name that is not UTF-8, a lone surrogate here, becomes the escape \\udcNN: what is written is UTF-8.
    """
    text = json.dumps(facts, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def digest_of(facts: dict[str, Any]) -> str:
    """xxh3_64 of the canonical serialisation of all facts but the digest itself."""
    return hexdigest(canonical({key: value for key, value in facts.items() if key != "digest"}))


def sign(facts: dict[str, Any]) -> bytes:
    """The canonical serialisation of these facts and their digest."""
    return canonical({**facts, "digest": digest_of(facts)})


def parse_signed(encoded: bytes, path: Path, *, form: str, version: int, advice: str) -> dict[str, Any]:
    """The facts in a signed file of this format and version.

    Args:
        encoded: The file's bytes.
        path: The file, which errors name.
        form: The expected "format".
        version: The expected "version".
        advice: What to do about a damaged file, for the errors.

    Raises:
        StoreError: If the bytes are not signed JSON of this format and version.
    """
    try:
        facts = json.loads(encoded)
        as_signed = isinstance(facts, dict) and canonical(facts) == encoded and facts.get("digest") == digest_of(facts)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not JSON ({error}); {advice}") from None
    if not isinstance(facts, dict) or facts.get("format") != form:
        raise StoreError(f'{path}: not a {form} file: "format" is not "{form}"; {advice}')
    found = facts.get("version")
    if type(found) is not int or found != version:
        what = f"format version {found!r}, this decodeonce reads {version}"
        raise StoreError(f"{path}: {what}; install a newer decodeonce, or {advice}")
    if not as_signed:
        raise StoreError(f"{path}: damaged: its bytes are not those that were written; {advice}")
    return facts
