"""Steady-state msd of the policies on the presets: `make study`, about a minute on two cores."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from isfed import (
    EQUAL,
    OUTLIERS,
    PAPER,
    FedAvg,
    ISFedAvg,
    Memory,
    Oracle,
    Running,
    Score,
    simulate,
)
from isfed.simulate.run_history import Steady

RESULTS = Path(__file__).parent / "results"


def algorithms() -> dict[str, ISFedAvg]:
    """What the table compares, at the paper's settings."""
    common = {"step_size": 0.01, "num_active": 6}
    second = Memory(score=Score.SECOND_MOMENT)
    return {
        "FedAvg": FedAvg(**common),
        "FedAvg 1/E_k": FedAvg(**common, divide_by_steps=True),
        "oracle": ISFedAvg(**common, agents=Oracle(), examples=Oracle()),
        "running": ISFedAvg(**common, agents=Running(), examples=Running()),
        "running, no floor": ISFedAvg(
            **common, agents=Running(floor=0.0), examples=Running(floor=0.0)
        ),
        "memory": ISFedAvg(**common),
        "memory, 2nd moment": ISFedAvg(**common, agents=second),
    }


def main() -> None:
    """Print one table, a row for each preset and data seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--data-seeds", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=160)
    names = list(algorithms())
    table = Table(
        "data", *names, "oracle gain", "memory - oracle",
        title=f"steady-state msd in dB (standard error), {options.repetitions} repetitions, second "
        f"half of {options.rounds} rounds",
    )  # fmt: skip
    lines = []
    for recipe in (PAPER, EQUAL, OUTLIERS):
        for seed in range(options.data_seeds):
            problem = recipe.make(seed=seed)
            steady: dict[str, Steady] = {}
            for name, algorithm in algorithms().items():
                history = simulate(
                    problem, algorithm, rounds=options.rounds, repetitions=options.repetitions
                )
                steady[name] = history.steady(share=0.5)
            row = [f"{recipe.name}, seed {seed}"]
            row += [f"{s.db:.1f} ({s.stderr_db:.2f})" for s in steady.values()]
            row.append(_apart(steady["FedAvg"], steady["oracle"]))
            row.append(_apart(steady["memory"], steady["oracle"]))
            table.add_row(*row)
            lines.append("| " + " | ".join(row) + " |")
            console.print(f"{row[0]} done", highlight=False)
    console.print(table)
    console.print(f"load: {os.getloadavg()}", highlight=False)
    heading = ["data", *names, "oracle gain", "memory - oracle"]
    rule = "|" + "---|" * len(heading)
    RESULTS.mkdir(exist_ok=True)
    text = "\n".join(["| " + " | ".join(heading) + " |", rule, *lines])
    (RESULTS / "study.md").write_text(text + "\n")


def _apart(above: Steady, below: Steady) -> str:
    return f"{above.db - below.db:.2f} ({np.hypot(above.stderr_db, below.stderr_db):.2f})"


if __name__ == "__main__":
    main()
