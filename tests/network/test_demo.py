"""The demo leaves no process behind, whatever ends it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isfed.flower.demo import DemoResults, run_demo
from isfed.flower.local_processes import FederationError, LocalFederation


def processes_of(folder: Path) -> list[int]:
    """Running processes whose environment names the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            zombie = entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
            if not zombie and f"FLWR_HOME={folder}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill_server(demo: subprocess.Popen, folder: Path) -> None:
    """kill -9 of the server app, as soon as there is one."""
    until = time.monotonic() + 600.0
    while not (found := list(folder.glob("*/results/server.pid"))):
        assert time.monotonic() < until
        time.sleep(0.1)
    while not (number := found[0].read_text()):
        time.sleep(0.1)
    os.kill(int(number), signal.SIGKILL)


ENDS = {
    "Ctrl-C": (lambda demo, _: demo.send_signal(signal.SIGINT), 130, "every process was stopped"),
    "SIGTERM": (lambda demo, _: demo.send_signal(signal.SIGTERM), 130, "every process was stopped"),
    "failure": (kill_server, 1, "the server app ended before the last round"),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left(tmp_path, end):
    act, code, said = ENDS[end]
    demo = subprocess.Popen(
        [sys.executable, "-m", "isfed", "federation", "demo", "--agents", "2"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 600.0
        while len(processes_of(tmp_path)) < 2:  # at least the SuperLink and its SuperExec
            assert demo.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        act(demo, tmp_path)
        _, errors = demo.communicate(timeout=600)
    finally:
        demo.kill()
        left = processes_of(tmp_path)
        for pid in left:  # only if the demo failed to
            os.kill(pid, signal.SIGKILL)
    assert demo.returncode == code, errors
    assert said in errors
    assert left == []
    assert not list(tmp_path.glob("isfed-*"))  # keys and all


def test_a_server_that_died_between_two_looks_is_noticed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "server.pid").write_text(str(gone.pid))
    with pytest.raises(FederationError, match="ended before the last round"):
        list(DemoResults(tmp_path).follow(seconds=5.0))
    (tmp_path / "done").write_text("")  # it came to its end before we looked
    assert list(DemoResults(tmp_path).follow(seconds=5.0)) == []


def test_kill_9_leaves_no_process_and_the_next_start_removes_the_keys(tmp_path):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        [sys.executable, "-m", "isfed", "federation", "demo", "--agents", "2"],
        env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 600.0
    try:
        while len(processes_of(tmp_path)) < 2:
            assert demo.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        demo.kill()
        demo.wait()
    assert list(tmp_path.glob("isfed-demo-*/keys/ca.key"))
    code = "from isfed.flower.demo import remove_leftovers; remove_leftovers()"
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=600)
    assert not list(tmp_path.glob("isfed-*"))
    assert processes_of(tmp_path) == []


GIVEN_UP = {"status": "finished:failed", "status-details": "No heartbeat received from the task"}


def gone(*_):
    raise FederationError("no SuperLink answers")


@pytest.mark.parametrize(
    ("flwr", "lost"),
    [
        (lambda *_: json.dumps({"runs": [GIVEN_UP]}), True),
        (lambda *_: json.dumps({"runs": [{"status": "running", "status-details": ""}]}), False),
        (gone, False),
    ],
)
def test_the_demo_says_when_flower_gave_the_run_up(monkeypatch, flwr, lost):
    def ended(*_):
        raise FederationError("the server app ended")

    monkeypatch.setattr(LocalFederation, "flwr", lambda self, *arguments, **_: flwr(*arguments))
    monkeypatch.setattr(LocalFederation, "start", lambda self: None)
    monkeypatch.setattr(LocalFederation, "submit", lambda self, *_: "7")
    monkeypatch.setattr(LocalFederation, "log", lambda self, _: "the last lines")
    monkeypatch.setattr("isfed.flower.demo._compare", ended)
    with pytest.raises(FederationError) as found:
        run_demo(agents=2, rounds=1, active=1, seed=0, say=lambda _: None)
    assert ("start the demo again" in str(found.value)) == lost
    assert ("the last lines" in str(found.value)) != lost
    assert "the server app ended" in str(found.value)
