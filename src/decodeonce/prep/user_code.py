"""Import and call user code, such as a dataset or a map, so that it changes nothing here."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from decodeonce.errors import BuildError
from decodeonce.formatting import quoted
from decodeonce.host import limited_memory

MOST_TEXT = 500  # characters of the text of an exception

_lock = threading.RLock()  # the current folder is that of the whole process
# By owner: the current folder of the user's code, and which folder was the current one outside of it.
_moved: dict[str, tuple[int, os.stat_result]] = {}
_inside = False  # whether such a block is running


def before_import(name: str) -> None:
    """Do nothing before a function or class of the user is imported; `prep` replaces this function by its own."""


class ClosedFiles(BuildError):
    """User code closed files that it did not open."""


def import_function(name: str, flag: str, folder: Path) -> Callable[..., Any]:
    """Import a function or class that a user named.

    Args:
        name: Import path, `package.module:function`.
        flag: What precedes the name in messages.
        folder: The folder that is searched last for modules.

    Raises:
        BuildError: It cannot be imported.
    """
    module_name, _, function_name = name.partition(":")
    if not all(map(str.isidentifier, [*module_name.split("."), function_name])):
        raise BuildError(f"{flag}{name}: expected package.module:function, such as mymodule:f for f in ./mymodule.py")
    if module_name == "__main__":
        raise BuildError(f"{flag}{name}: other processes cannot import __main__; move the function into a module")
    before_import(name)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    try:
        with user_code(flag):
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing == module_name.partition(".")[0]:
            advice = f"run from the folder that contains {missing}, or set PYTHONPATH"
            raise BuildError(f"{flag}{name}: {error}; {advice}") from None
        if missing and not module_name.startswith(missing):
            advice = f"install it, for example with pip, or add its folder to PYTHONPATH; {module_name} imports it"
            raise BuildError(f"{flag}{name}: {error}; {advice}") from None
        what = f"importing {module_name} raised {raised_text(error)}"
        raise BuildError(f"{flag}{name}: {what}; {reproduce(f'import {module_name}', folder)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value)]
        alike = difflib.get_close_matches(function_name, names)
        expected = f"a function or class, such as {', '.join(alike)}" if alike else "a function or class"
        raise BuildError(f"{flag}{name}: {module_name} has no function {function_name}; expected {expected}")
    found: Callable[..., Any] = function
    return found


def reproduce(code: str, folder: Path) -> str:
    """Return the advice to run Python code that imports a module, which may be in a folder."""
    path = "" if folder == Path.cwd() else f"PYTHONPATH={quoted(folder)}:$PYTHONPATH "
    return f"reproduce it with: {path}python -c {quoted(code)}"


@contextmanager
def user_code(owner: str = "") -> Iterator[None]:
    """Run a block that calls the user's code.

    The code may keep much memory, such as a model. It may change the current folder, as Hydra does, for itself: outside
    of blocks of the same owner, relative paths keep their meaning. Other threads must not use relative paths meanwhile.
    What the code prints with `print` goes to standard error.
    """
    global _inside
    with _lock:
        if _inside:
            yield
            return
        _inside = True
        try:
            with _own_folder_kept(owner), limited_memory(None), redirect_stdout(sys.stderr):
                yield
        finally:
            _inside = False


@contextmanager
def _own_folder_kept(owner: str) -> Iterator[None]:
    """Run a block in the current folder of the owner's code, and return to our own."""
    moved = _moved.get(owner)
    own = os.open(".", os.O_PATH | os.O_CLOEXEC)
    here = os.fstat(own)
    kept = list(filter(_is_open, range(3)))
    try:
        if moved is not None and os.path.samestat(here, moved[1]):
            os.fchdir(moved[0])
        yield
    finally:
        is_own = _is_open(own) and os.path.samestat(os.fstat(own), here)  # a later file may have its number
        closed = not is_own or not all(map(_is_open, kept))
        if not closed:
            if moved is not None:
                os.close(moved[0])
            _moved[owner] = os.open(".", os.O_PATH | os.O_CLOEXEC), here
        if is_own:
            os.fchdir(own)
            os.close(own)
        if closed:  # a file of a store could get the number of the standard output
            raise ClosedFiles("user code closed files of this process; let it close only files that it opened")


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def raised_text(error: BaseException) -> str:
    """Return the type and the text of an exception of the user's code, on at most `MOST_TEXT` characters."""
    try:
        text = str(error)
    except (Exception, SystemExit) as other:
        text = f"its text raised {type(other).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    cut = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}..."
    return f"{type(error).__name__}: {cut}"
