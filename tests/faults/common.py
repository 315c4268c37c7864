"""What the parts share: commands with their undisturbed results, and how an end is judged."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

os.environ.update(COLUMNS="200", MPLBACKEND="agg")  # before anything of ours is imported
LONGEST = 1200.0  # seconds: what takes longer hangs; the first start compiles
EXPERIMENT = """
rounds = 2000
repetitions = 4
[problem]
preset = "paper"
num_agents = 12
num_examples = 15
[[algorithm]]
kind = "FedAvg"
step_size = 0.01
num_active = 3
[[algorithm]]
kind = "ISFedAvg"
step_size = 0.01
num_active = 3
"""
BOARD = """
name = "board"
version = 1
rounds = 60
repetitions = 3
seed = 7
trials = 3
tuning_rounds = 40
tuning_repetitions = 1
tuning_seed = 8
looks = 8
decades = 4
reference = "FedAvg"
[[problem]]
name = "small"
num_active = 3
source = { preset = "outliers", num_agents = 12, num_examples = 10, batch_size = [1, 4] }
[[method]]
kind = "FedAvg"
[[method]]
kind = "ISFedAvg"
[factorial]
sampler = ["uniform", "by score"]
estimator = ["Horvitz-Thompson"]
server = ["plain", "average"]
trials = 2
repetitions = 3
"""
# One process, one thread: kills are spread over as much of the work as possible.
COMMANDS = {
    "run": ["run", "experiment.toml", "--threads", "1"],
    "reproduce": [
        "reproduce", "regression", "--no-heterogeneity", "--rounds", "40", "--repetitions", "2",
        "--threads", "1",
    ],
    "compare": [
        "compare", "table.csv", "--agent", "site", "--target", "y", "--rounds", "40",
        "--repetitions", "2", "--active", "2", "--threads", "1",
    ],
    "leaderboard": ["leaderboard", "--file", "board.toml", "--jobs", "1", "--threads", "1"],
    "quick leaderboard": ["leaderboard", "--quick", "--jobs", "1", "--threads", "1"],
}  # fmt: skip
ON_REQUEST = ("quick leaderboard",)  # it takes a minute for each of its runs
COMPILES = 12.0  # seconds of computing: a start that takes longer has compiled something
MAY_DIFFER = ("times.json", ".lock")  # how long it took, and who held the folder
DRAWN = (".png", ".svg")  # after the results are complete; a killed run may lack them


@dataclass
class Tally:
    """What was tried and what went wrong, kept in a file so that a part can be continued."""

    path: Path
    counts: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path, name: str) -> Tally:
        path = folder / f"{name}.json"
        if path.exists():
            known = json.loads(path.read_text())
            return cls(path, Counter(known["counts"]), known["wrong"])
        return cls(path)

    def add(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def fail(self, text: str) -> None:
        self.wrong.append(text)
        print(f"WRONG: {text}", flush=True)

    def save(self) -> None:
        self.path.write_text(json.dumps({"counts": self.counts, "wrong": self.wrong}))


def make_place(folder: Path) -> Path:
    """A folder with the files that the commands read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    (folder / "board.toml").write_text(BOARD)
    rng = random.Random(0)
    rows = ["site,x,z,y"]
    for site in "abcdef":
        for _ in range(12):
            x, z = rng.gauss(0, 1), rng.gauss(0, 1)
            rows.append(f"{site},{x:.6f},{z:.6f},{x - z + rng.gauss(0, 0.3):.6f}")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder


def command(name: str, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "isfed", *COMMANDS[name], "--out", str(out), *more]


def call(words: Sequence[str], place: Path, **options) -> subprocess.CompletedProcess:
    """Run to the end; a hang is an error."""
    return subprocess.run(
        words, cwd=place, capture_output=True, text=True, timeout=LONGEST, env=environment(),
        **options,
    )  # fmt: skip


def seconds_computed(pid: int) -> float:
    """What a running process has used of the processor: on a busy machine a clock says little."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError):  # it has just ended
        return 0.0


def children_computed() -> float:
    """The same of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment() -> dict[str, str]:
    return dict(os.environ)


def files_of(folder: Path) -> dict[str, bytes]:
    """The results of a folder, by name; without drawings, which come after them."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in MAY_DIFFER and path.suffix not in DRAWN
    }


def references(place: Path) -> dict[str, tuple[dict[str, bytes], float]]:
    """The undisturbed results of every command, and what it computes once all is compiled."""
    found = {}
    for name in COMMANDS:
        out = place / f"reference-{name}"
        seconds_file = place / f"reference-{name}.computed"
        if not seconds_file.exists():
            shutil.rmtree(out, ignore_errors=True)
            before = children_computed()
            done = call(command(name, out), place)
            if done.returncode:
                raise RuntimeError(f"{name} failed undisturbed: {done.stderr[-500:]}")
            if children_computed() - before > COMPILES:
                shutil.rmtree(out)
                before = children_computed()
                call(command(name, out), place)
            seconds_file.write_text(str(children_computed() - before))
        found[name] = (files_of(out), float(seconds_file.read_text()))
    return found


def difference(found: dict[str, bytes], expected: dict[str, bytes]) -> str | None:
    """How two folders differ; None if they are equal bit for bit."""
    if found == expected:
        return None
    names = sorted({n for n in (*found, *expected) if found.get(n) != expected.get(n)})
    return f"differ in {', '.join(names)}"


TRACE = re.compile(r"Traceback|File \"|isfed has a fault|Exception ignored|Segmentation")


def judged(code: int, errors: str, *, allowed: Sequence[int]) -> str | None:
    """What is wrong with how a command ended; None if nothing is."""
    if TRACE.search(errors):
        return f"a traceback: {errors.strip()[-600:]}"
    if code not in allowed:
        return f"code {code}: {errors.strip()[-300:]}"
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    usage = code == 2 and "Usage:" in errors  # a frame of Typer's around what is wrong
    if code not in (0, -9, -25) and len(said) != 1 and not usage:
        return f"code {code} with {len(said)} lines of error: {errors.strip()[-300:]}"
    return None
