"""Whether numbers and speed are those of an older revision, by command and by method.

    python tools/before_after.py REVISION [--only NAME ...] [--speed] [--tries 7]

Checks the revision out beside the working tree and runs both with the same seeds: every method of
`isfed methods` over compiled agents, and the commands. Prints what differs in any bit: how much the
models and the numbers of tables differ there, and the first lines of a text. --only takes "methods"
and names of commands. With --speed it prints microseconds per round of both instead.
"""

from __future__ import annotations

import argparse
import difflib
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
    "writers": ["reproduce", "writers", "--rounds", "20", "--repetitions", "2", "--out", "out"],
    "run": ["run", "experiment.toml", "--out", "out"],
    "networks": ["reproduce", "networks", "--setting", "a", "--quick", "--rounds", "3",
                 "--repetitions", "1", "--out", "out"],
    "predict": ["predict", "model.json", "table.csv"],
    "designs": ["designs"],
    "list of methods": ["methods"],
}  # fmt: skip
EXPERIMENT = """
name = "before and after"
rounds = 200
repetitions = 3
seed = 1
[problem]
preset = "paper"
seed = 2
[[algorithm]]
name = "FedAvg"
kind = "FedAvg"
step_size = 0.01
num_active = 6
[[algorithm]]
name = "memory"
step_size = 0.01
num_active = 6
agents = "memory"
examples = "memory"
[[algorithm]]
name = "drift"
step_size = 0.01
num_active = 6
correction = "drift"
"""
SHOWN = 8  # lines of a text that differ
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?|nan|inf")
# Progress, times, folders, and rows of tables: a column tells rounds per second, and files have the
# rest. The digest of a summary is that of the configuration, which gains a key with every option.
VARYING = re.compile(
    r"^.*\(of all repetitions\).*\n|\d[\d.,]* ?(s|ms|seconds|minutes|min|h)\b|/tmp/\S+|^[│┃┏┡└├].*",
    re.M,
)
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
    kept = (line for line in text.splitlines() if "second" not in line and '"digest"' not in line)
    return "\n".join(kept)


def command_results(tree: Path, arguments: list[str], old: Path) -> dict[str, str]:
    """What a command prints, and the content of the files that it leaves, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [f"{i % 6},{i % 7 + (i % 6) ** 2},{i % 11},{i % 7 + i % 13},{i % 2}"
                for i in range(240)]  # fmt: skip
        (folder / "table.csv").write_text("\n".join(["who,a,b,y,c", *rows]), encoding="utf-8")
        (folder / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
        if arguments[0] == "predict":  # both with the model of the old tree
            run(old, ["-m", "isfed", *COMMANDS["compare"]], folder)
        contents = {"printed": VARYING.sub("", run(tree, ["-m", "isfed", *arguments], folder))}
        for path in sorted((folder / "out").rglob("*")):
            if path.suffix in RESULTS and path.name not in NOT_COMPARED:
                contents[str(path.relative_to(folder))] = numbers_in(path)
    return contents


def difference(before: str, now: str | None) -> list[str]:
    """What differs between two contents: the numbers by how much, a text by its first lines."""
    if now is None:
        return ["not written any more"]
    if NUMBER.sub("", before) == NUMBER.sub("", now):
        pairs = zip(NUMBER.findall(before), NUMBER.findall(now), strict=True)
        sizes = [abs(float(a) - float(b)) / max(abs(float(a)), 1e-300) for a, b in pairs if a != b]
        return [f"{len(sizes)} numbers differ, by at most {max(sizes, default=0.0):.1e} of them"]
    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), n=0, lineterm="")
    changed = [line[:160] for line in lines if not line.startswith(("---", "+++", "@@"))]
    return [f"{len(changed)} lines differ", *changed[:SHOWN]]


def compare_methods(old: Path) -> bool:
    """Print which methods differ between the trees; whether any does."""
    before, now = (json.loads(run(tree, ["-c", METHODS + NUMBERS])) for tree in (old, ROOT))
    differ = {name for name in before if before[name] != now.get(name)}
    print(
        f"methods: {len(before)} runs, {len(before) - len(differ)} equal in every bit", flush=True
    )
    for name in sorted(differ):
        a, b = before[name], now.get(name)
        if isinstance(a, list) and isinstance(b, list):
            print(f"  {name}: {max(abs(x - y) for x, y in zip(a, b, strict=True)):.1e}")
        else:
            print(f"  {name}: {str(a)[:90]} | {str(b)[:90]}")
    return bool(differ)


def compare_command(old: Path, name: str) -> bool:
    """Print how a command's outputs differ between the trees; whether any does."""
    before, now = (command_results(tree, COMMANDS[name], old) for tree in (old, ROOT))
    unequal = [key for key in before if before[key] != now.get(key)]
    print(f"isfed {name}: {len(before)} outputs, {len(before) - len(unequal)} equal in every bit")
    for key in unequal:
        first, *more = difference(before[key], now.get(key))
        print("\n      ".join([f"  {key}: {first}", *more]))
    for key in now.keys() - before.keys():
        print(f"  {key}: new")
    sys.stdout.flush()
    return bool(unequal)


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
    names = ["methods", *COMMANDS]
    parser.add_argument("--only", action="append", choices=names, help="what to compare")
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
        differ = [
            compare_methods(Path(folder))
            if name == "methods"
            else compare_command(Path(folder), name)
            for name in options.only or names
        ]
        return int(any(differ))


if __name__ == "__main__":
    sys.exit(main())
