"""Call code of the user, such as a dataset or a map, so that it changes nothing here."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from decodeonce.host import limited_memory

MOST_TEXT = 500  # characters of the text of an exception

_lock = threading.RLock()  # the current folder is that of the whole process
# The current folder of the user's code, and which folder was the current one outside of it.
_moved: tuple[int, os.stat_result] | None = None
_inside = False  # whether such a block is running


@contextmanager
def user_code() -> Iterator[None]:
    """Run a block that calls the user's code.

    The code may keep much memory, such as a model. It may change the current folder, as Hydra does, for itself: outside
    of the block, relative paths of SRC and OUT keep their meaning. Other threads must not use relative paths meanwhile.
    What the code prints with `print` goes to standard error.
    """
    global _inside
    with _lock:
        if _inside:
            yield
            return
        _inside = True
        try:
            with _own_folder_kept(), limited_memory(None), redirect_stdout(sys.stderr):
                yield
        finally:
            _inside = False


@contextmanager
def _own_folder_kept() -> Iterator[None]:
    """Run a block in the current folder of the user's code, and return to our own."""
    global _moved
    own = os.open(".", os.O_PATH | os.O_CLOEXEC)
    here = os.fstat(own)
    try:
        if _moved is not None and os.path.samestat(here, _moved[1]):
            os.fchdir(_moved[0])
        yield
    finally:
        if _moved is not None:
            os.close(_moved[0])
        _moved = os.open(".", os.O_PATH | os.O_CLOEXEC), here
        os.fchdir(own)
        os.close(own)


def raised_text(error: BaseException) -> str:
    """Return the type and the text of an exception of the user's code, on at most `MOST_TEXT` characters."""
    try:
        text = str(error)
    except (Exception, SystemExit) as other:
        text = f"its text raised {type(other).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    cut = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."
    return f"{type(error).__name__}: {cut}"
