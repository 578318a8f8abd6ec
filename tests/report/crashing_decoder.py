"""A decoder process that crashes: it kills itself."""

from __future__ import annotations

import os
import signal


def main(arguments: list[str]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)  # unlike SIGSEGV, this leaves no core file
    return 0
