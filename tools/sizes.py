"""How large the package is: lines, modules, what one call enters, names and words that repeat.

python tools/sizes.py [REVISION ...] prints one column for the working tree and one for each
revision, which is checked out beside it for a moment. With --capabilities it prints the lines of
the working tree by room, and by what they are for.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIMULATE = """
import sys
count = lambda: sum(name.startswith("isfed.") for name in sys.modules)
from isfed import PAPER, ISFedAvg
problem, method = PAPER.make(), ISFedAvg(step_size=0.01, num_active=6)
before = count()
import isfed
isfed.simulate(problem, method, rounds=2, engine={engine!r})
print(f"{{count() - before}} of {{count()}}")
"""
COMPARE = """
import sys
from isfed.cli.app import app  # `main` would end the process
try:
    app()
except SystemExit:
    pass
print(sum(name.startswith("isfed.") for name in sys.modules), file=sys.stderr)
"""
TABLE_ROWS = 120
# What the modules are for, by pattern; the first that fits counts.
CAPABILITIES = {
    "the leaderboard": ("*/leaderboard*", "studies/fixed_points.py", "studies/work_cells.py"),
    "protection and privacy": (
        "federation/guarded.py", "federation/safety.py", "federation/agent_records.py",
        "federation/privacy_loss.py", "methods/private.py", "methods/robust_means.py",
    ),
    "absences and clocks": (
        "federation/response_rates.py", "federation/virtual_clock.py", "methods/fedcs.py",
        "methods/hybrid_fl.py",
    ),
    "control variates": (
        "federation/variate_updates.py", "methods/control_variates.py", "methods/fedvarp.py",
        "methods/scaffold.py", "methods/mifa.py",
    ),
    "rivals: other samplers and estimators": (
        "methods/active_fl.py", "methods/bandit_samplers.py", "methods/change_norms.py",
        "methods/clustered_sampling.py", "methods/delta_sampling.py", "methods/divfl.py",
        "methods/fedau.py", "methods/fedcor.py", "methods/fedstas.py", "methods/hics_fl.py",
        "methods/kvib.py", "methods/oort.py", "methods/optimal_sampling.py",
        "methods/power_of_choice.py", "methods/folb.py",
    ),
    "averages, look-ahead, passes, auto steps": (
        "methods/servers.py", "methods/iterate_average.py", "methods/look_ahead_passes.py",
        "methods/passes_over_agents.py", "methods/stratified_passes.py", "simulate/pilot_runs.py",
    ),
    "methods that the paper names": (
        "methods/adaptive_tau.py", "methods/agnostic_fl.py", "methods/cooperative_sgd.py",
        "methods/fedasync.py", "methods/fedavg_schemes.py", "methods/fedprox.py",
        "methods/hierfavg.py", "methods/local_sgd.py", "methods/mocha.py", "methods/q_ffl.py",
        "report/systems_report.py",
    ),
    "the round, ISFedAvg, agents in process": ("methods/*", "federation/*"),
    "the kernel and the driver of runs": ("simulate/*",),
    "sampling designs, estimates of totals": (
        "sampling/designs/*", "sampling/estimation.py",
    ),
    "scores and policies": ("sampling/*",),
    "losses, optima, synthetic problems": ("problems/*",),
    "neural networks": ("torch/*", "*/network*"),
    "agents on other machines": ("flower/*", "cli/federation.py"),
    "reading tables and data sets": (
        "datasets/*", "studies/dataset_config.py", "cli/table_options.py", "cli/predict.py",
        "studies/model_file.py", "studies/sklearn_estimators.py",
    ),
    "compare and diagnose": (
        "*/compar*", "*/diagnos*", "theory/strategies.py", "theory/tuned_ways.py",
        "theory/budget_levels.py", "studies/paired_step_search.py",
    ),
    "theory: variance, stability, certificates": ("theory/*",),
    "studies, experiments, results folders": ("studies/*",),
    "pages, tables and figures": ("report/*",),
    "the command line": ("cli/*",),
    "streams, files, arithmetic, compiling": ("base/*", "*.py"),
}  # fmt: skip
# The engine of studies and all studies, today and before they were files of one engine.
STUDIES = (
    "src/isfed/studies/study_*.py", "src/isfed/studies/experiment*.py",
    "src/isfed/studies/*step*.py", "src/isfed/studies/comparison*.py",
    "src/isfed/studies/leaderboard_*.py", "src/isfed/studies/*_study.py",
)  # fmt: skip
STUDY_SCRIPTS = ("variance_*.py", "theory_*.py", "*study.py", "same_step.py")
# Words of the project's own that should give way to the field's (DESIGN.md).
PRIVATE_WORDS = {
    "apart", "around", "book", "chain", "contest", "cross", "crew", "deals", "found", "halve",
    "hearing", "hits", "links", "mailbox", "news", "resting", "roll", "settling", "shelf",
    "standing", "thin", "tick", "told", "trust", "ways",
}  # fmt: skip


def sources(tree: Path) -> dict[Path, ast.Module]:
    """The modules of the package, parsed."""
    package = tree / "src" / "isfed"
    return {path: ast.parse(path.read_bytes()) for path in sorted(package.rglob("*.py"))}


def twice(modules: dict[Path, ast.Module]) -> list[str]:
    """Public functions and classes that more than one module defines."""
    kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    names = Counter(
        node.name
        for tree in modules.values()
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def refused_pairs(modules: dict[Path, ast.Module], package: Path) -> int:
    """Conditions of methods on two or more fields of one record that raise an error at once."""
    count = 0
    for path, tree in modules.items():
        if path.relative_to(package).parts[0] not in {"methods", "algorithms"}:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
                fields = {
                    (part.value.id, part.attr)
                    for part in ast.walk(node.test)
                    if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
                }
                count += max(Counter(owner for owner, _ in fields).values(), default=0) > 1
    return count


def lines_of(tree: Path, patterns: Iterable[str]) -> str:
    """Lines of the files of some patterns, each counted once, and how many files."""
    paths = {path for pattern in patterns for path in tree.glob(pattern)}
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    return f"{lines:,} in {len(paths)}"


def words(paths: Iterable[Path]) -> tuple[str, int]:
    """The private words that stand most often as names, and the number of comments."""
    names, comments = Counter(), 0
    for path in paths:
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                comments += token.type == tokenize.COMMENT
                if token.type == tokenize.NAME and token.string in PRIVATE_WORDS:
                    names[token.string] += 1
    return " ".join(f"{word} {count}" for word, count in names.most_common(3)), comments


def entered(tree: Path, code: str, *words: str) -> str:
    """The last line that some code prints in a process of its own, with that tree's package."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[-1] if lines else "?"


def compared(tree: Path) -> str:
    """How many modules `isfed compare` has loaded when it ends."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        rows = [f"{i % 6},{i % 7},{i % 11},{i % 7 + i % 11}" for i in range(TABLE_ROWS)]
        table.write_text("\n".join(["who,a,b,y", *rows]), encoding="utf-8")
        words = ["compare", str(table), "--agent", "who", "--target", "y", "--rounds", "20"]
        return entered(tree, COMPARE, *words, "--out", f"{folder}/out")


def sizes(tree: Path) -> dict[str, str]:
    """All figures of one tree."""
    modules = sources(tree)
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    method = [path for path in modules if path.name == "isfedavg.py"]
    double = twice(modules)
    private, comments = words(modules)
    return {
        "lines of src": f"{sum(lines.values()):,}",
        "modules": str(len(modules)),
        "lines of isfedavg.py": str(sum(lines[path] for path in method)),
        "lines of studies and their engine": lines_of(tree, STUDIES),
        "lines of studies as scripts": lines_of(
            tree,
            [f"{place}/{name}" for place in ("benchmarks", "docs/make") for name in STUDY_SCRIPTS],
        ),
        "longest module": f"{max(lines.values())}",
        "modules entered by simulate, kernel": entered(tree, SIMULATE.format(engine="kernel")),
        "modules entered by simulate, agents": entered(tree, SIMULATE.format(engine="agents")),
        "modules entered by compare": compared(tree),
        "public names defined twice": f"{len(double)} {' '.join(double[:3])}".strip(),
        "refusals of pairs of options": str(refused_pairs(modules, tree / "src" / "isfed")),
        "private words": private,
        "comments": f"{comments:,}",
    }


def capability_of(path: str) -> str:
    """What a module of the package is for."""
    fits = (name for name, patterns in CAPABILITIES.items()
            if any(fnmatch.fnmatch(path, pattern) for pattern in patterns))  # fmt: skip
    return next(fits)


def kinds_of_lines(path: Path, tree: ast.Module) -> Counter[str]:
    """The lines of a module: all, code, docstrings, and the rest, which is comments and blanks."""
    text, documented, code = path.read_text(encoding="utf-8").splitlines(), set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.string.strip() and token.type not in (tokenize.COMMENT, tokenize.ENCODING):
                code.update(range(token.start[0], token.end[0] + 1))
    return Counter(
        modules=1, lines=len(text), code=len(code - documented), docstrings=len(documented)
    )


def print_capabilities(tree: Path) -> None:
    """Print modules and lines by room, then by capability."""
    package = tree / "src" / "isfed"
    rooms, capabilities = {}, {name: Counter[str]() for name in CAPABILITIES}
    for path, module in sources(tree).items():
        place, kinds = path.relative_to(package), kinds_of_lines(path, module)
        room = place.parts[0] if len(place.parts) > 1 else "isfed"
        rooms[room] = rooms.get(room, Counter()) + kinds
        capability = capability_of(place.as_posix())
        capabilities[capability] = capabilities[capability] + kinds
    columns = ("modules", "lines", "code", "docstrings")
    for title, rows in {"room": rooms, "what for": capabilities}.items():
        print(f"\n{title:44s}" + "".join(f"{column:>12s}" for column in columns))
        rows = rows | {"all": sum(rows.values(), Counter())}
        for name, counts in rows.items():
            print(f"{name:44s}" + "".join(f"{counts[column]:12,}" for column in columns))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revisions", nargs="*", help="older states to compare with")
    parser.add_argument("--capabilities", action="store_true", help="what the lines are for")
    options = parser.parse_args()
    given = options.revisions
    if options.capabilities:
        print_capabilities(ROOT)
        return
    columns = {"working tree": sizes(ROOT)}
    for revision in given:
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(
                ["git", "archive", revision], cwd=ROOT, capture_output=True, check=True
            )
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
            columns[revision] = sizes(Path(folder))
    print(f"{'':38s}" + "".join(f"{name:>34s}" for name in columns))
    for row in columns["working tree"]:
        print(f"{row:38s}" + "".join(f"{column[row]:>34s}" for column in columns.values()))


if __name__ == "__main__":
    main()
