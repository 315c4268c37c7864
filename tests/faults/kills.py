"""Kill commands at random moments, from their first millisecond on; what is left must be whole.

Some kills fall into the start of a process of its own. The others fall into a fork that has all
libraries loaded (see warm.py): after a random time of computing, before a random file operation, or
in the middle of a write.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from common import (
    COMMANDS,
    Tally,
    call,
    command,
    difference,
    environment,
    files_of,
    judged,
    references,
    seconds_computed,
)
from warm import DRAWN_ONE_IN, PHASES, RESULTS, RUNNING, TUNING, Death, Fork, phase, prepare

SHARE_OF_CTRL_C = 0.25  # of the kills; the others are kill -9
SHARE_OF_STARTS = 0.1  # of the kills, in a process of its own
LONG_STOP = 30.0  # seconds of computing between Ctrl-C and the end
SIZES = (1, 100, 400, 1000, 3000)  # bytes after which a write is cut
AIMED = {name: [PHASES[RUNNING], PHASES[RESULTS]] for name in COMMANDS}
AIMED["compare"] += [PHASES[TUNING]] * 2
START_UP = "starting up (a process of its own)"


def run(place: Path, tally: Tally, *, kills: int, first: int = 0) -> None:
    """So many kills, spread over the commands; every run is then continued and compared.

    The runs are numbered from `first`, and the number decides when they are killed.
    """
    known = references(place)
    usual = prepare(place)
    names = list(COMMANDS)
    while tally.counts["kills"] < kills:
        number = first + tally.counts["runs completed"]
        name = names[number % len(names)]
        expected, seconds = known[name]
        out = place / "killed"
        shutil.rmtree(out, ignore_errors=True)
        rng = random.Random(f"{name} {number}")
        for _ in range(rng.randint(4, 14)):
            attempt = _Attempt(name, out, place, tally, rng, usual[name])
            if attempt.start_up(seconds) if rng.random() < SHARE_OF_STARTS else attempt.work():
                break  # it had ended before
            if tally.counts["kills"] >= kills:
                break
        wrong = _complete(name, out, place, real=number % 12 == 0)
        wrong = wrong or difference(files_of(out), expected)
        if wrong:
            tally.fail(f"{name} continued after kills: {wrong}")
        tally.add("runs completed")
        tally.save()
        print(f"kills: {tally.counts['kills']} of {kills}", flush=True)


def _complete(name: str, out: Path, place: Path, *, real: bool) -> str | None:
    """Continue to the end, in a process of its own or in a fork."""
    if real:
        done = call(command(name, out, "--resume"), place)
        return judged(done.returncode, done.stderr, allowed=[0])
    fork = Fork([*COMMANDS[name], "--out", str(out), "--resume"], place, out, draw=False)
    errors = fork.finish()
    return judged(fork.returncode or 0, errors, allowed=[0])


class _Attempt:
    """One start of a command, and its end."""

    def __init__(
        self, name: str, out: Path, place: Path, tally: Tally, rng: random.Random, usual: tuple
    ) -> None:
        self.name, self.out, self.place, self.tally, self.rng = name, out, place, tally, rng
        self.seconds, self.touches = usual
        self.ctrl_c = rng.random() < SHARE_OF_CTRL_C

    def start_up(self, seconds: float) -> bool:
        """Kill a process of its own while it starts; true if it had ended before."""
        process = subprocess.Popen(
            command(self.name, self.out, "--resume"), cwd=self.place, env=environment(), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        # Python itself cannot be stopped in one line before it has read its first module.
        longest = max(0.3, seconds - self.seconds)
        wait = max(self.rng.random() * longest, 0.15 if self.ctrl_c else 0.0)
        _wait(process, wait)
        if process.poll() is not None:
            process.communicate()
            return True
        before = seconds_computed(process.pid)
        process.send_signal(signal.SIGINT if self.ctrl_c else signal.SIGKILL)
        used = before
        while process.poll() is None:
            used = max(used, seconds_computed(process.pid))
            time.sleep(0.005)
        assert process.stderr is not None
        errors = process.stderr.read()
        process.stderr.close()
        where = f"after {wait:.2f} s"
        return self._judge(process.returncode, errors, START_UP, where, used - before)

    def work(self) -> bool:
        """Kill a fork; true if it had ended before."""
        words = [*COMMANDS[self.name], "--out", str(self.out), "--resume"]
        draw = self.rng.randrange(DRAWN_ONE_IN) == 0
        how = self.rng.choice(["clock", "operation", "operation", "phase", "phase", "size"])
        number = signal.SIGINT if self.ctrl_c else signal.SIGKILL
        if how == "clock":
            wait = self.rng.random() * 1.1 * self.seconds
            fork = Fork(words, self.place, self.out, draw=draw)
            _wait(fork, wait)
            fork.send_signal(number)
            where = f"after {wait:.2f} s"
        elif how == "phase":
            wanted = self.rng.choice(AIMED[self.name])
            wait = self.rng.random() * 0.05
            fork = Fork(words, self.place, self.out, draw=draw)
            while fork.poll() is None and phase() != wanted:
                time.sleep(0.0005)
            _wait(fork, seconds_computed(fork.pid) + wait)
            fork.send_signal(number)
            where = f"{wait:.3f} s after it began {wanted}"
        elif how == "operation":
            # What is continued has less to do: late operations are chosen less often.
            death = Death(before=1 + int(self.touches * self.rng.random() ** 2), by=number)
            fork = Fork(words, self.place, self.out, death, draw=draw)
            where = f"before file operation {death.before}"
        else:
            self.ctrl_c = False
            death = Death(beyond=self.rng.choice(SIZES))
            fork = Fork(words, self.place, self.out, death, draw=draw)
            where = f"at byte {death.beyond} of a file"
        errors = fork.finish()
        return self._judge(fork.returncode or 0, errors, phase(), where, fork.computed)

    def _judge(self, code: int, errors: str, during: str, where: str, computed: float) -> bool:
        if code == 0:
            return True
        allowed = [130] if self.ctrl_c else [-signal.SIGKILL, -signal.SIGXFSZ]
        how = "Ctrl-C" if self.ctrl_c else "kill -9"
        wrong = judged(code, errors, allowed=allowed)
        if wrong:
            self.tally.fail(f"{self.name} {where}, {during}, {how}: {wrong}")
        if computed > LONG_STOP + self.seconds:
            self.tally.fail(f"{self.name} {where}: computed for {computed:.0f} s before it stopped")
        self.tally.add("kills")
        self.tally.add(f"{how} of {self.name}")
        self.tally.add(f"while {during}")
        return False


def _wait(process: Any, seconds: float) -> None:
    """By what it has computed: a clock would kill at other places on a busy machine."""
    while process.poll() is None and seconds_computed(process.pid) < seconds:
        time.sleep(0.002)
