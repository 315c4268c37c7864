"""Does `isfed.torch.diagnose` recommend what the study of networks found to be good?

    python benchmarks/networks_diagnose.py [--rounds 50] [a b-shards ...]

For every setting of `isfed reproduce networks` that PyTorch trains: FedAvg for some rounds at the
step size that the study chose for it, then the diagnosis of that model at the same step size,
beside the final accuracies in benchmarks/networks.json.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from isfed import FedAvg, simulate
from isfed.report.terminal_tables import percent
from isfed.studies.networks_study import SETTINGS
from isfed.torch import diagnose

KEPT = Path(__file__).parent / "networks.json"
ROWS = {
    "uniform": "FedAvg", "importance": "importance", "spread": "spread",
    "difference": "difference", "drift": "drift",
}  # fmt: skip


def accuracies(found: dict[str, Any]) -> dict[str, str]:
    """The final accuracy of every method, as text."""
    return {
        row["name"]: "diverged"
        if row["diverged"]
        else percent(row["accuracy"], row["accuracy_stderr"])
        for row in found["rows"]
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", help="all that PyTorch trains unless given")
    parser.add_argument("--rounds", type=int, default=50)
    given = parser.parse_args()
    kept = json.loads(KEPT.read_text())
    names = given.settings or [n for n in kept if not SETTINGS[n].source.compiled]
    print(
        "| setting | variance, over that of uniform draws | bias | recommended | accuracies (%) |"
    )
    print("|---|---|---|---|---|")
    for name in names:
        setting, rows = SETTINGS[name], kept[name]["rows"]
        step = next(row["step_size"] for row in rows if row["name"] == "FedAvg")
        problem = setting.source.make()
        algorithm = FedAvg(step_size=step, num_active=setting.num_active)
        model = simulate(problem, algorithm, rounds=given.rounds, seed=1).params[0]
        found = diagnose(problem, num_active=setting.num_active, step_size=step, params=model)
        uniform = found.variance["uniform"]
        shares = ", ".join(f"{w} {v / uniform:.2f}" for w, v in found.variance.items())
        told = accuracies(kept[name])
        measured = ", ".join(f"{way} {told[row]}" for way, row in ROWS.items())
        print(
            f"| {name} | {shares} | {found.drift / uniform:.2f} | {found.choice} | {measured} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
