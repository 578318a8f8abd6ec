"""A headless Chromium for tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, sync_playwright

from tests.packages import need


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a headless Chromium, installed if necessary. If that fails, skip the tests, or let them fail in CI.

    Use it as a fixture of a module: Playwright allows one at a time in a process.
    """
    need({"chromium": "chromium"})
    with TemporaryDirectory() as home, sync_playwright() as playwright:  # Chromium leaves files in the home folder
        environ: dict[str, str | float | bool] = {**os.environ, "HOME": home}
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], env=environ)
        yield browser
        browser.close()
