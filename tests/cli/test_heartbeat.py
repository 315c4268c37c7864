"""Commands are never silent for long; on a clock of the test's own."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace

import pytest

from isfed.base import progress
from isfed.cli import heartbeat
from isfed.cli.heartbeat import AGAIN, FIRST, LOOK, Heartbeat, keep_talking


@pytest.fixture
def clock():
    return SimpleNamespace(now=100.0, used=100.0)


@pytest.fixture
def beating(clock, monkeypatch):
    """A heartbeat and what it has said."""
    monkeypatch.setattr(progress._TIMER, "latest", "")
    said: list[str] = []
    return Heartbeat(said.append, lambda: clock.now, lambda: clock.used), said


def wait(beating: Heartbeat, clock: SimpleNamespace, seconds: float) -> None:
    for _ in range(round(seconds / LOOK)):
        clock.now += LOOK
        beating.look()


def test_first_words_within_a_second_and_never_five_in_silence():
    assert FIRST + LOOK < 1.0
    assert AGAIN + LOOK < 3.5  # with room for a busy machine


def test_silence_is_filled_with_what_is_done(beating, clock):
    beating, said = beating
    wait(beating, clock, FIRST - LOOK)
    assert said == []
    wait(beating, clock, 3 * LOOK)
    assert said == ["loading ...\n"]
    progress.say("reading mine.csv")
    wait(beating, clock, 2.5 * AGAIN)
    assert said[1:] == ["reading mine.csv ...\n", "reading mine.csv (6 s so far)\n"]
    progress.say("finding the optimum")
    wait(beating, clock, AGAIN)
    assert said[3:] == ["finding the optimum ...\n"]


def test_loading_on_a_busy_machine_says_so(beating, clock):
    beating, said = beating
    clock.used = 1.0
    wait(beating, clock, 1.5 * AGAIN)
    assert said[-1] == "loading (3 s so far, 1.0 s of them on a processor: the machine is busy)\n"
    clock.used = 5.0  # most of the time: it is the work itself that takes so long
    wait(beating, clock, AGAIN)
    assert said[-1].startswith("loading (")
    assert said[-1].endswith(" s so far)\n")
    clock.used = 1.0
    progress.say("reading mine.csv")
    wait(beating, clock, 2.5 * AGAIN)
    assert said[-1].startswith("reading mine.csv (")
    assert said[-1].endswith(" s so far)\n")


def test_what_the_command_writes_counts(beating, clock):
    beating, said = beating
    stream = SimpleNamespace(write=io.StringIO().write)
    beating.listen(stream)
    for _ in range(20):
        stream.write("a line\n")
        wait(beating, clock, AGAIN - 0.5)
    assert said == []


def test_compiling_is_said(beating, clock, monkeypatch):
    beating, said = beating
    monkeypatch.setattr(progress._TIMER, "depth", 1)
    monkeypatch.setattr(progress._TIMER, "kept", False)
    wait(beating, clock, 1.0)
    monkeypatch.setattr(progress._TIMER, "kept", True)
    wait(beating, clock, 2.5 * AGAIN)
    assert said[0] == "compiling ...\n"
    assert said[-1] == "compiling, once per installation (6 s so far)\n"


@pytest.mark.parametrize("words", [[], ["--version"], ["federation", "demo"], ["run", "--help"]])
def test_other_commands_are_left_alone(words, monkeypatch):
    monkeypatch.setattr(heartbeat.threading, "Thread", None)  # would fail
    assert keep_talking(words) is None


def test_it_speaks_before_anything_large_is_imported():
    code = """
import sys, threading
from isfed.cli import heartbeat
heartbeat.FIRST = 0.0
done = threading.Event()
write = heartbeat.os.write
heartbeat.os.write = lambda to, text: (write(to, text), done.set())
stopped = heartbeat.keep_talking(["compare"])
done.wait(60)
stopped.set()
large = {"numba", "numpy", "pyarrow", "typer"} & set(sys.modules)
sys.exit(f"loaded: {large}" if large else 0)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "loading ...\n", "")
