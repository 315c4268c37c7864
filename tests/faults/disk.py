"""A full disk, and two processes on one folder."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import time
from pathlib import Path

from common import (
    COMMANDS,
    LONGEST,
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
from damage import in_process
from warm import Fork, prepare, sketched

SIZES = (0, 100, 1000, 4_000, 20_000, 60_000)  # bytes of the largest file that may be written
ROOM = ("16k", "64k", "128k", "256k")  # of a file system in memory


def full(place: Path, tally: Tally) -> None:
    """Files that may not grow, and a small file system; afterwards there is room again."""
    for name, (expected, _) in references(place).items():
        for size in SIZES:
            out = place / "full"
            shutil.rmtree(out, ignore_errors=True)

            def limit(size: int = size) -> None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

            done = call(command(name, out, "--resume"), place, preexec_fn=limit)
            _judge(name, f"files of {size} bytes", done, tally)
            _again(name, out, place, expected, tally)
        if not _has_tmpfs():
            tally.add("file systems that could not be made", len(ROOM))
            continue
        for room in ROOM:
            out = place / "small"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            words = " ".join(f"'{word}'" for word in command(name, out, "--resume"))
            kept = place / "kept"
            shutil.rmtree(kept, ignore_errors=True)
            script = (
                f"mount -t tmpfs -o size={room} none '{out}' && "
                f"{{ {words}; code=$?; cp -a '{out}' '{kept}'; exit $code; }}"
            )
            done = call(["unshare", "--mount", "sh", "-c", script], place)
            _judge(name, f"a file system of {room}", done, tally)
            _again(name, kept, place, expected, tally)


def _has_tmpfs() -> bool:
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=4k none /mnt"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        return False


def _judge(name: str, what: str, done: subprocess.CompletedProcess, tally: Tally) -> None:
    tally.add("full disks")
    tally.add("of them stopped the command", int(done.returncode != 0))
    wrong = judged(done.returncode, done.stderr, allowed=[0, 1])
    if wrong:
        tally.fail(f"{name} with {what}: {wrong}")


def _again(name: str, out: Path, place: Path, expected: dict[str, bytes], tally: Tally) -> None:
    with sketched():
        code, errors = in_process([*COMMANDS[name], "--out", str(out), "--resume"], place)
    wrong = judged(code, errors, allowed=[0]) or difference(files_of(out), expected)
    if wrong:
        tally.fail(f"{name} continued after a full disk: {wrong}")


def two(place: Path, tally: Tally, *, pairs: int) -> None:
    """Two processes start on one folder at nearly the same time: one is refused, none is lost.

    One pair in three are processes of their own, the others forks, which meet more closely.
    """
    known, usual = references(place), prepare(place)
    names = list(known)
    while tally.counts["pairs"] < pairs:
        number = tally.counts["pairs"]
        name = names[number // 3 % len(names)]
        rng = random.Random(number)
        out = place / "shared"
        shutil.rmtree(out, ignore_errors=True)
        own = number % 3 == 0
        seconds = known[name][1] if own else usual[name][0]
        ends = _meet(name, out, place, own, rng.random() * rng.choice([0.1, 1.0]) * seconds)
        for errors, code in ends:
            wrong = judged(code, errors, allowed=[0, 1])
            if wrong or (code == 1 and "another run is writing" not in errors):
                tally.fail(f"two {name} on one folder: {wrong or errors[-200:]}")
        codes = [code for _, code in ends]
        tally.add("pairs")
        tally.add("of them processes of their own", int(own))
        tally.add("of them refused one", int(1 in codes))
        if 0 not in codes:
            tally.fail(f"two {name} on one folder: neither came to its end")
        wrong = difference(files_of(out), known[name][0])
        if wrong:
            tally.fail(f"two {name} on one folder: {wrong}")
        tally.save()
        print(f"pairs: {tally.counts['pairs']} of {pairs}", flush=True)


def _meet(name: str, out: Path, place: Path, own: bool, wait: float) -> list[tuple[str, int]]:
    """What two commands write as errors, and how they end."""
    if not own:
        forks = []
        for _ in range(2):
            words = [*COMMANDS[name], "--out", str(out), "--resume"]
            forks.append(Fork(words, place, out, draw=False))
            until = seconds_computed(forks[0].pid) + wait
            while forks[0].poll() is None and seconds_computed(forks[0].pid) < until:
                time.sleep(0.001)
        return [(fork.finish(), fork.returncode or 0) for fork in forks]
    started = []
    for _ in range(2):
        started.append(
            subprocess.Popen(
                command(name, out, "--resume"), cwd=place, env=environment(), text=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        time.sleep(wait)
    return [(p.communicate(timeout=LONGEST)[1], p.returncode) for p in started]
