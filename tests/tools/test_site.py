"""The site is complete, asks no other host for anything, and can be searched from the disk."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import isfed

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    os.environ.get("ISFED_TEST_DOCS") != "1", reason="set ISFED_TEST_DOCS=1 to build the site"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly: a broken link is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


class Requests(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        source = given.get("src") or (given.get("href") if tag == "link" else None)
        if source:
            self.found.append(source)


def test_no_page_asks_another_host(site):
    for page in site.rglob("*.html"):
        parser = Requests()
        parser.feed(page.read_text(encoding="utf-8"))
        outside = [url for url in parser.found if re.match(r"(https?:)?//", url)]
        assert outside == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?https?:", style.read_text(encoding="utf-8"))


def test_the_reference_has_every_public_name(site):
    pages = [path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html")]
    headings = set(re.findall(r'id="isfed\.[\w.]*?(\w+)"', "".join(pages)))
    assert set(isfed.__all__) - {"__version__"} - headings == set()
    first = (site / "reference" / "simulate.html").read_text(encoding="utf-8")
    assert re.findall(r"<h2.*?>(.*?)</h2>", first, re.S)[0].count("isfed.simulate") >= 1


def test_the_reference_has_every_command_and_every_kind(site):
    from isfed.studies.name_registry import METHODS

    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for command in ("reproduce regression", "compare", "diagnose", "run", "federation keys make"):
        assert f"isfed {command}</code>" in commands
    keys = (site / "reference" / "toml.html").read_text(encoding="utf-8")
    assert [kind for kind in METHODS if f"<code>{kind}</code>" not in keys] == []
    wanted = (
        "rounds",
        "repetitions",
        "preset",
        "noisy_share",
        "concentration",
        "sha256",
        "decimal",
    )
    assert [key for key in wanted if f"<code>{key}</code>" not in keys] == []
    assert 'id="clock"' in keys
    assert "<code>jitter</code>" in keys


def test_every_page_of_the_documents_can_be_reached(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    for path in (ROOT / "docs").rglob("*.md"):
        page = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert f'href="{page}"' in start, page


def test_search_works_from_the_disk(site):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    where = f"{(site / 'index.html').as_uri()}?q=inclusion"
    done = subprocess.run(
        [browser, *options, "--dump-dom", where], capture_output=True, text=True, timeout=120
    )
    assert re.search(r"\d+ matching documents", done.stdout)
