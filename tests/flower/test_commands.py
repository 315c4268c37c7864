"""`isfed federation`: mistakes in one line, what is left behind, and the clock of a host."""

# pyright: reportMissingImports=false
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from flwr.app import Context, RecordDict
from local_grid import LocalGrid
from typer.testing import CliRunner

from isfed.cli.federation import app
from isfed.flower import demo
from isfed.flower.local_processes import MARK

run = CliRunner().invoke


def test_without_flower_every_command_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for arguments in (
        ["demo"],
        ["keys", "make", str(tmp_path), "--host", "h", "--agents", "1"],
        ["keys", "list", "--folder", str(tmp_path)],
    ):
        result = run(app, arguments)
        assert result.exit_code == 1
        assert result.stderr == "error: Flower is not installed: pip install 'isfed[flower]'\n"


def test_more_active_agents_than_agents(tmp_path):
    result = run(app, ["demo", "--agents", "2", "--active", "3"])
    assert result.exit_code == 1
    assert "--active 3 exceeds --agents 2" in result.stderr


def test_the_next_demo_removes_what_a_killed_one_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, sys; from isfed.flower import demo; held = demo.HeldFolder(demo.PREFIX);"
        "folder = held.path;"
        "(folder / 'mark').write_text('left'); (folder / 'ca.key').write_text('secret');"
        "print(folder, flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.Popen(
        [sys.executable, "-c", code],
        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert killed.stdout is not None
    folder = killed.stdout.readline().strip()
    child = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: "left"})
    assert demo.remove_leftovers() == []  # it lives
    killed.kill()
    killed.communicate()
    assert [str(path) for path in demo.remove_leftovers()] == [folder]
    assert list(tmp_path.iterdir()) == []
    assert child.wait() == -9


def test_a_folder_in_use_is_private_and_goes_with_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(demo.HeldFolder(demo.PREFIX)) as held:
        folder = held.path
        assert folder.name.startswith("isfed-demo-")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert demo.remove_leftovers() == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def clock():
    """A server whose clock is wrong by `clock.ahead` seconds."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response_only(404)
            if server.ahead is not None:
                self.send_header("Date", formatdate(time.time() + server.ahead, usegmt=True))
            self.end_headers()

        def log_message(self, *_):
            """Nothing to print."""

    class Server(HTTPServer):
        ahead: float | None = 0.0

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (0.0, None),
        (60.0, None),  # this host is a minute behind: Flower does not mind
        (-4.0, "s ahead of the cloud's: Flower will soon lock out this node"),
        (-3600.0, "s ahead of the cloud's: Flower locks out this node"),
        (200.0, "s behind the cloud's: Flower will soon lock out this node"),
        (3600.0, "s behind the cloud's: Flower locks out this node"),
        (None, "does not say what time it is"),
    ],
)
def test_a_wrong_clock_is_found_and_said(clock, ahead, said):
    clock.ahead = ahead
    result = run(app, ["check", f"127.0.0.1:{clock.server_address[1]}"])
    assert result.exit_code == (0 if said is None else 1), result.output
    assert said is None or said in result.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", ":80", "127.0.0.1:1"])
def test_a_cloud_that_is_not_there(address):
    result = run(app, ["check", address])
    assert result.exit_code == 1
    assert "must be HOST:PORT" in result.stderr or "cannot be reached" in result.stderr


def test_flowers_simulation_ends_where_the_kernel_does(monkeypatch):
    """Its scheduler, which needs Ray, is a grid in this process."""

    def run_simulation(server, client, *, num_supernodes, backend_config):
        grid = LocalGrid(client, [{"partition-id": k} for k in range(num_supernodes)])
        server(grid, Context(1, 0, {}, RecordDict(), {}))

    monkeypatch.setattr("flwr.simulation.run_simulation", run_simulation)
    monkeypatch.setattr(demo, "find_spec", lambda name: name)
    results = demo.compare_engines(rounds=3, seed=1)
    assert [result.engine for result in results] == ["kernel", "objects", "flower"]
    assert max(result.difference for result in results) < 1e-12
