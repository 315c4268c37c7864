"""tools/under_load.py says what happened, and leaves no busy process behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "under_load.py"
# The command sees its siblings: the busy processes are children of its parent.
COUNT = """
import os, pathlib, sys
parent = os.getppid()
loops = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
print("beside", len(loops) - 1, *[pid for pid in loops if int(pid) != os.getpid()], flush=True)
"""

pytestmark = pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(),
    reason="this system does not list a process's children",
)


def under_load(*command: str) -> subprocess.Popen:
    options = ["--times", "2", "--busy", "2", "--", sys.executable, "-c", *command]
    return subprocess.Popen(
        [sys.executable, str(TOOL), *options], stdout=subprocess.PIPE, text=True
    )


def gone(pids: list[str]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_runs_beside_busy_processes_and_says_so():
    tool = under_load(COUNT)
    printed, _ = tool.communicate(timeout=600)
    assert tool.returncode == 0
    words = [line.split() for line in printed.splitlines()]
    assert [line[:2] for line in words[::2]] == [["beside", "2"]] * 2
    assert [line[:6] for line in words[1::2]] == [
        ["==>", "run", str(number), "of", "2", "passed"] for number in (1, 2)
    ]
    assert gone(words[0][2:])


def test_the_first_failure_ends_it():
    tool = under_load(COUNT + "sys.exit(3)")
    printed, _ = tool.communicate(timeout=600)
    assert tool.returncode == 3
    assert printed.count("beside 2") == 2  # the command's line and ours, once each
    assert "run 1 of 2 failed with code 3" in printed
    assert gone(printed.split()[2:4])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_busy_process_is_left_when_it_is_ended(number):
    tool = under_load(COUNT + "while os.getppid() == parent: pass")  # it, too, must not stay
    assert tool.stdout is not None
    seen = tool.stdout.readline().split()
    tool.send_signal(number)
    tool.wait(timeout=600)
    assert seen[:2] == ["beside", "2"]
    until = time.monotonic() + 600.0
    while not gone(seen[2:]):  # after kill -9 they notice by themselves that their parent is gone
        assert time.monotonic() < until
