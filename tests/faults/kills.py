"""Kill commands at random moments, from their first millisecond on; what is left must be whole."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

from common import (
    COMMANDS,
    LONGEST,
    Tally,
    call,
    children_computed,
    command,
    difference,
    environment,
    files_of,
    judged,
    references,
    seconds_computed,
)

SHARE_OF_CTRL_C = 0.25  # of the kills; the others are kill -9
LONG_STOP = 30.0  # seconds of computing between Ctrl-C and the end


def run(place: Path, tally: Tally, *, kills: int, first: int = 0) -> None:
    """So many kills, spread over the commands; every run is then continued and compared.

    The runs are numbered from `first`, and the number decides when they are killed.
    """
    known = references(place)
    names = list(COMMANDS)
    while tally.counts["kills"] < kills:
        number = first + tally.counts["runs completed"]
        name = names[number % len(names)]
        expected, seconds = known[name]
        out = place / "killed"
        shutil.rmtree(out, ignore_errors=True)
        rng = random.Random(f"{name} {number}")
        for _ in range(rng.randint(3, 12)):
            if _kill_once(name, out, place, tally, rng, seconds) or tally.counts["kills"] >= kills:
                break
        done = call(command(name, out, "--resume"), place)
        wrong = judged(done.returncode, done.stderr, allowed=[0])
        wrong = wrong or difference(files_of(out), expected)
        if wrong:
            tally.fail(f"{name} continued after kills: {wrong}")
        tally.add("runs completed")
        tally.save()
        print(f"kills: {tally.counts['kills']} of {kills}", flush=True)


def _kill_once(
    name: str, out: Path, place: Path, tally: Tally, rng: random.Random, seconds: float
) -> bool:
    """Start or continue, and kill; true if the command had ended before."""
    process = subprocess.Popen(
        command(name, out, "--resume"), cwd=place, env=environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    ctrl_c = rng.random() < SHARE_OF_CTRL_C
    # By what it has computed: a clock would kill at other places on a busy machine.
    # Python itself cannot be stopped in one line before it has read its first module.
    wait = max(rng.random() * 1.1 * seconds, 0.15 if ctrl_c else 0.0)
    before = children_computed()
    while process.poll() is None and seconds_computed(process.pid) < wait:
        time.sleep(0.005)
    if process.poll() is not None:
        process.communicate()
        return True
    before += seconds_computed(process.pid)
    process.send_signal(signal.SIGINT if ctrl_c else signal.SIGKILL)
    _, errors = process.communicate(timeout=LONGEST)
    tally.add("kills")
    tally.add(f"{'Ctrl-C' if ctrl_c else 'kill -9'} of {name}")
    if wait < 2.0:
        tally.add("in the first two seconds")
    wrong = judged(process.returncode, errors, allowed=[130, 0] if ctrl_c else [-9, 0])
    if wrong:
        tally.fail(f"{name} after {wait:.2f} s, {'Ctrl-C' if ctrl_c else 'kill -9'}: {wrong}")
    if (spent := children_computed() - before) > LONG_STOP:
        tally.fail(f"{name} computed for {spent:.0f} s before it stopped")
    return process.returncode == 0
