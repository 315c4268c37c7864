"""A run in which nobody's answer can be used ends with exit code 1 and saves no model."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isfed.flower.local_processes import LocalFederation

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
LONGEST = 900.0  # seconds: for what takes a few on an idle machine
BETTER = b"a better one"
SHIM = """#!/bin/sh
"{real}" "$@"
code=$?
echo $code >> "{codes}"
exit $code
"""
BROKEN = """
import sys
if any("flwr-clientapp" in part for part in sys.orig_argv):
    from flwr.clientapp import ClientApp
    from isfed.flower import demo_app
    demo_app.client = ClientApp()  # no handler: an app without isfed's turn
"""


@pytest.fixture(scope="module")
def leftover(tmp_path_factory):
    """A federation that serves `before/` of the example, and notes how server apps end."""
    folder = tmp_path_factory.mktemp("leftover")
    with LocalFederation(folder, agents=3) as running:
        name, scripts = "flwr-serverapp", folder / "scripts"
        scripts.mkdir()
        shim = SHIM.format(real=shutil.which(name, path=running.env["PATH"]), codes=codes(running))
        (scripts / name).write_text(shim)
        (scripts / name).chmod(0o755)
        running.env["PATH"] = f"{scripts}{os.pathsep}{running.env['PATH']}"
        running.start()
        assert run(running, app_of(folder / "old", "before", "before")) == ("completed", "")
        assert codes(running).read_text().split() == ["0"]
        yield running


def codes(federation: LocalFederation) -> Path:
    """The exit codes of all server apps so far, one per line."""
    return federation.folder / "exit-codes"


def app_of(folder: Path, server: str, client: str) -> Path:
    """The example with a server and a client of these versions; the server saves its model."""
    shutil.copytree(EXAMPLE / server, folder)
    shutil.copy(EXAMPLE / client / "fedapp" / "client_app.py", folder / "fedapp")
    main = folder / "fedapp" / "server_app.py"
    text = main.read_text()
    if server == "after":
        assert "    strategy.start(" in text
        text = text.replace("    strategy.start(", "    result = strategy.start(")
        save = "str(dict(result.arrays)).encode()"
        text += f"    from pathlib import Path\n    Path('{folder}.model').write_bytes({save})\n"
    main.write_text(text)
    Path(f"{folder}.model").write_bytes(BETTER)
    return folder


def run(federation: LocalFederation, app: Path, *, rounds: int = 1) -> tuple[str, str]:
    """How a run ended, and what Flower says of it."""
    number = federation.submit(app, {"rounds": rounds})
    until = time.monotonic() + LONGEST
    while True:
        listed = federation.flwr("ls", "isfed", "--run-id", number, "--format", "json")
        one = json.loads(listed[listed.find("{") :])["runs"][0]
        if one["status"].startswith("finished"):
            break
        assert time.monotonic() < until, f"still {one['status']}"
        time.sleep(1.0)
    return one["status"].partition(":")[2], federation.details(number)


def test_an_old_client_ends_the_run_with_exit_code_1_and_saves_no_model(leftover):
    """The app of `before/` answers our strategy with models, not with changes."""
    app = app_of(leftover.folder / "mixed", "after", "before")
    status, details = run(leftover, app, rounds=4)
    assert status == "failed"
    assert "nobody's answer could be used in 3 rounds in a row" in details
    assert "Likely causes: the agents run an app without isfed's handler" in details
    assert codes(leftover).read_text().split()[-1] == "1"
    assert Path(f"{app}.model").read_bytes() == BETTER


def test_a_new_client_is_served_by_the_superlink_that_is_left_over(leftover):
    """Name and version of the app are those of `before/`; its code is not."""
    app = app_of(leftover.folder / "new", "after", "after")
    assert run(leftover, app) == ("completed", "")
    assert codes(leftover).read_text().split()[-1] == "0"
    assert Path(f"{app}.model").read_bytes() != BETTER


def test_the_demo_ends_with_exit_code_1_and_the_likely_causes(tmp_path):
    """Its agents answer, but by an app in which isfed's handler is missing."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sitecustomize.py").write_text(BROKEN)
    paths = [str(tmp_path / "broken"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "isfed", "federation", "demo", "--agents", "2"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=LONGEST,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "nobody's answer could be used in 3 rounds in a row" in done.stderr
    assert "Likely causes" in done.stderr
