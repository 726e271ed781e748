"""A real browser for what is read in one."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

#: What a browser is called, by who packages it.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser on PATH ({', '.join(NAMES)}); install chromium")
    with playwright.sync_playwright() as driver:
        # As root there is no sandbox to be had, and /dev/shm of a container is small.
        launched = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"]
        )
        yield launched
        launched.close()
