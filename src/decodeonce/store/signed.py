"""Signed JSON, the format of store.json and stage.json: canonical JSON that contains a digest of its other entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decodeonce.errors import StoreError
from decodeonce.store.hashing import hexdigest

MAX_BYTES = 64 << 20  # limit for reading a file into memory; 200,000 shards and 100,000 classes take 45 MB


def canonical(facts: Mapping[str, object]) -> bytes:
    """Serialize facts the only way that readers accept: sorted keys, one space of indent per level, UTF-8, a newline.

    Bytes of names that are not valid UTF-8, which are lone surrogates here, become escapes \\udcNN.
    """
    text = json.dumps(facts, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def digest_of(facts: Mapping[str, object]) -> str:
    """Hash the canonical form of all facts except the digest itself."""
    return hexdigest(canonical({key: value for key, value in facts.items() if key != "digest"}))


def sign(facts: Mapping[str, object]) -> bytes:
    """Serialize the facts together with their digest."""
    return canonical({**facts, "digest": digest_of(facts)})


def parse_signed(encoded: bytes, path: Path, *, form: str, version: int, advice: str) -> dict[str, Any]:
    """Parse a signed file and check its digest.

    Args:
        encoded: The file's bytes.
        path: The file's path, for errors.
        form: The expected value of "format".
        version: The expected value of "version".
        advice: The next step for a damaged file, for errors.

    Returns:
        The facts of the file.

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
        raise StoreError(f"{path}: damaged: its contents do not match its digest; {advice}")
    return facts
