"""The browser for the report page; without one its tests are skipped, with a message."""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import page_samples
import pytest
from small_board import TINY

WANTED = "ISFED_TEST_REPORT"  # set by `make test-report`
PICTURES = "ISFED_REPORT_PICTURES"  # a folder for screenshots
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = [
    name
    for name, found in (
        ("Chromium", CHROMIUM),
        ("chromedriver", DRIVER),
        ("selenium", find_spec("selenium")),
    )
    if not found
]
# A test session of the whole project does not start a browser by itself.
ASKED = bool(os.environ.get(WANTED))
collect_ignore_glob = [] if ASKED and not MISSING else ["test_page_browser.py"]


def pytest_terminal_summary(terminalreporter):
    """Say that something was left out, and why."""
    if ASKED and MISSING:
        terminalreporter.write_line(
            f"the report page was not opened in a browser: {', '.join(MISSING)} not installed "
            "(Debian: apt-get install chromium chromium-driver)"
        )
    elif not ASKED:
        terminalreporter.write_line(
            "the report page was not opened in a browser; `make test-report` does that"
        )


def start(folder: Path, *, script: bool = True) -> Any:
    """A browser with a profile of its own that talks to nobody."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for word in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "disable-dev-shm-usage", "hide-scrollbars", f"user-data-dir={folder}",
        "host-resolver-rules=MAP * ~NOTFOUND",
    ):  # fmt: skip
        options.add_argument(f"--{word}")
    if not script:
        settings = {"profile.managed_default_content_settings.javascript": 2}
        options.add_experimental_option("prefs", settings)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(str(DRIVER)))


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Any]:
    """One browser for all tests."""
    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def scriptless(tmp_path_factory) -> Iterator[Any]:
    """A browser in which scripts are switched off."""
    driver = start(tmp_path_factory.mktemp("scriptless"), script=False)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def addresses(tmp_path_factory) -> dict[str, str]:
    """Where the sample pages are."""
    from isfed.report.html_page import page
    from isfed.report.page_from_results import page_data
    from isfed.studies.leaderboard_config import make_protocol
    from isfed.studies.leaderboard_study import Leaderboard
    from isfed.studies.study_engine import run_study

    folder = tmp_path_factory.mktemp("pages")
    shown = {name: getattr(page_samples, name)() for name in ("ordinary", "nasty", "crowded")}
    board = run_study(Leaderboard(make_protocol(TINY)), folder / "board")
    found = {}
    for name, data in (*shown.items(), ("leaderboard", page_data(board))):
        path = folder / f"{name}.html"
        path.write_text(page(data), encoding="utf-8")
        found[name] = path.as_uri()
    return found


@pytest.fixture
def picture() -> Any:
    """Keep a picture of the whole page if somebody wants to look at it."""

    def take(driver: Any, name: str) -> bytes:
        import base64

        options = {"captureBeyondViewport": True, "format": "png"}
        shot = base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"])
        if os.environ.get(PICTURES):
            folder = Path(os.environ[PICTURES])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.png").write_bytes(shot)
        return shot

    return take
