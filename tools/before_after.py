"""Whether numbers and speed are those of an older revision, by command and by method.

    python tools/before_after.py REVISION [--speed] [--tries 7]

Checks the revision out beside the working tree and runs both with the same seeds: every method of
`isfed methods` over compiled agents, and the commands. Prints what differs in any bit, and how much
the models differ there. With --speed it prints microseconds per round of both instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
METHODS = """
import json, sys, time
import numpy as np
import isfed
from isfed import Clock, ISFedAvg, PAPER, simulate

MORE = {
    "AdaptiveTau": {"budget": 3.0}, "FedProx": {"stragglers": 0.5}, "HierFAVG": {"edge_rounds": 2},
    "HybridFL": {"permit": 0.3}, "KAVG": {"steps": 2}, "Mocha": {"inner_rounds": 3},
    "PeriodicAveraging": {"steps": 2}, "QFedAvg": {"power": 1.3}, "QFedSGD": {"power": 1.3},
    "RestartedSGD": {"average": "pre", "steps": 2},
    "StichSGD": {"strong": 0.5, "shift": 50.0, "steps": 2},
}
NAMES = '''FedAvg DynamicFedAvg ISFedAvg LocalGD LocalSGD KAVG StichSGD RestartedSGD MomentumSGD
AdaptiveTau FullySynchronousSGD PeriodicAveraging DecentralisedSGD ElasticAveraging FedAvgScheme
FedProx FedAsync HierFAVG Mocha FedCS HybridFL FOLB AgnosticFL QFedAvg QFedSGD FedVARP SCAFFOLD
ClusteredSampling PowerOfChoice'''.split()
VARIANTS = {
    "drift": {"correction": "drift"}, "difference": {"correction": "difference"},
    "on the change": {"weighting": "change"}, "averaged": {"average": True},
    "adjusted": {"absences": "adjusted"}, "full batches": {"full_batch": True},
    "spread": {"agent_design": isfed.Spread(every=3)},
}

def made(name, **options):
    step, active = {"step_size": 0.01}, {"num_active": 4}
    for common in (step | active, step, active, {}):
        try:
            return getattr(isfed, name)(**common, **MORE.get(name, {}), **options)
        except TypeError:
            continue
    raise SystemExit(f"{name} cannot be made")

methods = {name: made(name) for name in NAMES}
more = {f"ISFedAvg, {key}": ("ISFedAvg", value) for key, value in VARIANTS.items()}
more |= {name + " by size": (name, {"client_weights": "size"}) for name in NAMES}
for label, (name, options) in more.items():
    try:
        methods[label] = made(name, **options)
    except (SystemExit, ValueError):
        pass  # this revision has no such argument
problem = PAPER.replace(num_agents=20, num_examples=15).make(seed=3)
"""
NUMBERS = """
models = {}
for name, method in methods.items():
    for title, clock in {"": None, ", agents away": Clock(jitter=0.3, drop=0.1)}.items():
        try:
            run = simulate(problem, method, rounds=12, repetitions=2, seed=5, engine="agents",
                           clock=clock)
            models[name + title] = run.params.ravel().tolist()
        except Exception as error:
            models[name + title] = f"{type(error).__name__}: {error}"
print(json.dumps(models))
"""
SPEED = """
problem = PAPER.make(seed=3)
print(json.dumps(list(methods)), flush=True)
for line in sys.stdin:  # the name of a method; the answer is microseconds per round
    best = np.inf
    for rounds in (3, ROUNDS, ROUNDS):
        begin = time.process_time()
        simulate(problem, methods[line.strip()], rounds=rounds, engine="agents")
        best = min(best, (time.process_time() - begin) / rounds * 1e6)
    print(best, flush=True)
"""
TABLE = ["compare", "table.csv", "--agent", "who", "--target", "y", "--rounds", "60"]
COMMANDS = {
    "compare": [*TABLE, "--save", "model.json", "--out", "out"],
    "compare, classes": [*TABLE[:5], "c", "--task", "classification", "--rounds", "40", "--drop",
                         "y", "--out", "out"],
    "diagnose": ["diagnose", "table.csv", "--agent", "who", "--target", "y", "--out", "out"],
    "regression": ["reproduce", "regression", "--rounds", "60", "--repetitions", "3",
                   "--no-heterogeneity", "--out", "out"],
    "classification": ["reproduce", "classification", "--rounds", "40", "--repetitions", "2",
                       "--out", "out"],
    "systems": ["reproduce", "systems", "--quick", "--rounds", "30", "--out", "out"],
    "designs": ["designs"],
}  # fmt: skip
# Times, folders, and rows of tables: a column tells rounds per second, and files have the rest.
VARYING = re.compile(r"\d[\d.,]* ?(s|ms|seconds|minutes|min|h)\b|/tmp/\S+|^[│┃].*", re.M)
RESULTS = {".parquet", ".npz", ".csv", ".json"}
NOT_COMPARED = {"manifest.json", "times.json"}


def run(tree: Path, arguments: list[str], folder: Path | None = None) -> str:
    """What Python prints with that tree's package."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "100"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)[:200]} in {tree} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def numbers_in(path: Path) -> str:
    """The content of a results file without times; the numbers of a table or of arrays."""
    if path.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        kept = [name for name in table.column_names if "second" not in name]
        return str({name: table[name].to_pylist() for name in kept})
    if path.suffix == ".npz":
        import numpy as np

        with np.load(path) as arrays:
            return str({n: arrays[n].tolist() for n in arrays.files if "second" not in n})
    text = path.read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if "second" not in line)


def command_results(tree: Path, arguments: list[str]) -> dict[str, str]:
    """Hashes of what a command prints and of the tables that it leaves, by file name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [f"{i % 6},{i % 7 + (i % 6) ** 2},{i % 11},{i % 7 + i % 13},{i % 2}"
                for i in range(240)]  # fmt: skip
        (folder / "table.csv").write_text("\n".join(["who,a,b,y,c", *rows]), encoding="utf-8")
        contents = {"printed": VARYING.sub("", run(tree, ["-m", "isfed", *arguments], folder))}
        for path in sorted((folder / "out").rglob("*")):
            if path.suffix in RESULTS and path.name not in NOT_COMPARED:
                contents[str(path.relative_to(folder))] = numbers_in(path)
    return {key: hashlib.sha256(text.encode()).hexdigest()[:12] for key, text in contents.items()}


def compare_numbers(old: Path) -> int:
    """Print what differs between the trees; the number of differences."""
    before, now = (json.loads(run(tree, ["-c", METHODS + NUMBERS])) for tree in (old, ROOT))
    differ = {name for name in before if before[name] != now.get(name)}
    print(f"methods: {len(before)} runs, {len(before) - len(differ)} equal in every bit")
    for name in sorted(differ):
        a, b = before[name], now.get(name)
        if isinstance(a, list) and isinstance(b, list):
            print(f"  {name}: {max(abs(x - y) for x, y in zip(a, b, strict=True)):.1e}")
        else:
            print(f"  {name}: {str(a)[:90]} | {str(b)[:90]}")
    for name, arguments in COMMANDS.items():
        results = [command_results(tree, arguments) for tree in (old, ROOT)]
        unequal = [key for key in results[0] if results[0][key] != results[1].get(key)]
        print(f"isfed {name}: {len(results[0])} outputs, " + (f"differ: {unequal}" if unequal else
              "equal in every bit"), flush=True)  # fmt: skip
        differ.update(f"{name} {key}" for key in unequal)
    return len(differ)


def compare_speed(old: Path, tries: int) -> None:
    """Print microseconds per round of both trees and the median ratio of paired tries.

    Both processes live side by side and take turns at each method, so that what else the machine
    does meets both.
    """
    command = [sys.executable, "-c", METHODS + SPEED.replace("ROUNDS", "400")]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    trees = [{**os.environ, "PYTHONPATH": str(tree / "src")} for tree in (old, ROOT)]
    both: list[Any] = [subprocess.Popen(command, env=tree, **pipes) for tree in trees]
    names, now = (json.loads(process.stdout.readline()) for process in both)

    def measured(process: Any, name: str) -> float:
        print(name, file=process.stdin, flush=True)
        return float(process.stdout.readline())

    print(
        f"{'microseconds of CPU per round':32}{'before':>10}{'now':>10}{'ratio':>8}   of the tries"
    )
    for name in (name for name in names if name in now):
        pairs = [[measured(process, name) for process in both] for _ in range(tries)]
        ratios = sorted(now / before for before, now in pairs)
        before, after = (min(column) for column in zip(*pairs, strict=True))
        print(f"{name:32}{before:10.1f}{after:10.1f}{statistics.median(ratios):8.2f}   "
              f"{ratios[0]:.2f} to {ratios[-1]:.2f}", flush=True)  # fmt: skip
    for process in both:
        process.communicate()


def main() -> int:
    """Compare with a revision; 1 if a number differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision", help="the older state")
    parser.add_argument("--speed", action="store_true", help="compare times instead of numbers")
    parser.add_argument("--tries", type=int, default=7, help="paired measurements of speed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = ["git", "archive", options.revision, "src"]
        content = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=content, check=True)
        if options.speed:
            compare_speed(Path(folder), options.tries)
            return 0
        return int(compare_numbers(Path(folder)) > 0)


if __name__ == "__main__":
    sys.exit(main())
