"""The whole of `prep`, for tests that call it in their own process."""

from __future__ import annotations

from decodeonce.cli.app import COMMANDS, make_app

app = make_app(*COMMANDS)
