"""Options of every test run."""

from __future__ import annotations

from hypothesis import settings

# No deadline: on a busy machine with two cores an example's time says nothing.
settings.register_profile("decodeonce", deadline=None)
settings.load_profile("decodeonce")
