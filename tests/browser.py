"""A Chromium without a window, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, sync_playwright

from tests.packages import need


@contextmanager
def chromium() -> Iterator[Browser]:
    """The Chromium that is there, or that root's apt-get installs; else the tests are skipped, with CI set they fail.

    One at a time in a process, as a fixture of a module: Playwright allows no more.
    """
    need({"chromium": "chromium"})
    with TemporaryDirectory() as home, sync_playwright() as playwright:  # it leaves files in its user's folder
        environ: dict[str, str | float | bool] = {**os.environ, "HOME": home}
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], env=environ)
        yield browser
        browser.close()
