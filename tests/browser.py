"""A Chromium without a window, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.packages import need


@contextmanager
def chromium() -> Iterator[Browser]:
    """The Chromium that is there, or that root's apt-get installs; else the tests are skipped, with CI set they fail.

    One at a time in a process, as a fixture of a module: Playwright allows no more.
    """
    need({"chromium": "chromium"})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()
