"""The module graph of isfed: which room imports which, read from the sources.

    python tests/support/module_graph.py

prints every step upwards, every cycle and every module that is too long, and exits with 1 if
there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "isfed"
# Each room imports only the rooms before it (DESIGN: the rooms).
ROOMS = (
    "base", "problems", "datasets", "sampling", "federation", "methods", "theory", "simulate",
    "torch", "studies", "report", "flower", "cli",
)  # fmt: skip
MOST_LINES = 400
NOT_OF = {"report": ("flower",), "flower": ("report",)}  # only the command line imports both


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, known: dict[str, Path], *, everywhere: bool = True) -> Iterator[str]:
    """The modules of ours that a file imports; without `everywhere` at its top level only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.level:
                raise ValueError(f"{path}: imports are absolute here")
            for name in node.names:
                full = f"{node.module}.{name.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


def room_of(module: str) -> str | None:
    """The room of a module; None for the package itself, which may import all."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else None


def steps_upwards() -> list[str]:
    """Imports of a room that comes later, or of one that a room must not know."""
    known = modules()
    found = []
    for module, path in known.items():
        room = room_of(module)
        if room is None:
            continue
        for other in imports_of(path, known):
            target = room_of(other)
            later = target is not None and ROOMS.index(target) > ROOMS.index(room)
            if later or target in NOT_OF.get(room, ()):
                found.append(f"{module} imports {other}")
    return found


def homeless() -> list[str]:
    """Modules that are in no room."""
    alone = ("isfed", "isfed.__main__", "isfed.old_names")
    return [module for module in modules() if room_of(module) is None and module not in alone]


def cycles() -> list[str]:
    """Modules that import each other when they are loaded."""
    known = modules()
    edges = {m: set(imports_of(p, known, everywhere=False)) - {m} for m, p in known.items()}
    # A package's __init__ imports its modules, which is no cycle unless they import it back.
    done: set[str] = set()
    found: list[str] = []

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            found.append(" -> ".join((*path[path.index(module) :], module)))
            return
        if module in done:
            return
        for other in sorted(edges[module]):
            visit(other, (*path, module))
        done.add(module)

    for module in edges:
        visit(module, ())
    return found


def too_long() -> list[str]:
    """Modules of more than 400 lines."""
    found = []
    for path in modules().values():
        lines = len(path.read_text().splitlines())
        name = path.relative_to(PACKAGE).as_posix()
        if lines > MOST_LINES:
            found.append(f"{name} has {lines} lines")
    return found


def main() -> int:
    """Print what is wrong with the graph."""
    wrong = 0
    for title, check in (
        ("modules in no room", homeless),
        ("steps upwards", steps_upwards),
        ("cycles", cycles),
        (f"modules above {MOST_LINES} lines", too_long),
    ):
        found = check()
        wrong += len(found)
        print(f"{title}: {len(found) or 'none'}", *found, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
