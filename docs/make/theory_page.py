"""docs/theory.md, its appendix and figures.

    python docs/make/theory_page.py runs/theory

Made of the results of theory_study.py and of the folder of isfed run theory.toml.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from string import Template
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter
from theory_study import RESULTS

from isfed.report.page_data import markdown
from isfed.studies import load_results, read_experiment
from isfed.studies.work_cells import problem_of
from isfed.theory import diagnose, predict

HERE = Path(__file__).parent
STUDY = HERE / "theory.toml"
DOCS = HERE.parent
PAGE, APPENDIX = DOCS / "theory.md", DOCS / "appendix" / "theory.md"
MARK = "<!-- appendix -->\n"  # in theory_page.txt, before the part that is the appendix
LOOKS = {"agents": ("tab:blue", "o"), "examples": ("tab:orange", "s"), "both": ("black", "^")}


def variance_table(rows: list[dict[str, Any]]) -> str:
    """Exact, measured, z and bound of every design and policy."""
    return markdown(
        ["problem", "policy", "design", "exact", "from agents", "measured", "z", "bound"],
        [
            [
                row["problem"], row["policy"], row["design"], f"{row['exact']:.4g}",
                f"{100 * row['from_agents']:.0f}%",
                f"{row['measured']:.4g} ± {row['stderr']:.1g}", f"{row['z']:+.2f}",
                "none" if row["bound"] is None else f"{row['bound']:.3g}",
            ]
            for row in rows
        ],
    )  # fmt: skip


def bound_table(rows: list[dict[str, Any]]) -> str:
    """The msd at five step sizes."""
    return markdown(
        ["problem", "policy", "step", "rounds", "time constants", "repetitions", "measured",
         "predicted", "bound", "of it data, model"],
        [
            [
                row["problem"], row["policy"], f"{row['step_size']:.2e}", f"{row['rounds']:,}",
                f"{row['time_constants']:.2g}", str(row["repetitions"]),
                f"{row['measured']:.3e} ± {row['stderr']:.0e}", f"{row['predicted']:.3e}",
                f"{row['bound']:.2e}", f"{row['bound_data']:.1e}, {row['bound_model']:.1e}",
            ]
            for row in rows
        ],
    )  # fmt: skip


def groups(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By problem and policy."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["problem"], row["policy"]), []).append(row)
    return found


def slope(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Of the msd against the step size, both as logarithms, and its standard error."""
    x, y = (np.log([row[name] for row in rows]) for name in ("step_size", "measured"))
    errors = np.array([row["stderr"] / row["measured"] for row in rows])
    share = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    return float(share @ y), float(np.sqrt(share**2 @ errors**2))


def bound_words(rows: list[dict[str, Any]]) -> str:
    """The slopes, and whether everything is below the bound."""
    below = sum(row["measured"] < row["bound"] for row in rows)
    lines = [f"{below} of {len(rows)} measured msds lie below the bound."]
    for (problem, policy), found in groups(rows).items():
        value, stderr = slope(found)
        words = (
            f"{problem}, {policy}: on logarithmic axes the msd grows with the step size with slope "
            f"**{value:.3f} ± {stderr:.3f}** (the theorem says 1)."
        )
        if max(row["time_constants"] for row in found) < 1.0:
            words += (
                " All runs here have the same product of step size and rounds, and are too short "
                "to settle. One time constant takes "
                f"{found[0]['rounds'] / found[0]['time_constants']:.1e} rounds at the largest "
                "step. The bound is on the settled msd, which is predicted to be "
                f"{found[0]['steady']:.2e} there."
            )
        lines.append(words)
    return "\n".join(f"- {line}" for line in lines)


def bound_figure(rows: list[dict[str, Any]], path: Path) -> None:
    """The msd against the step size, with prediction and bound."""
    found = groups(rows)
    figure, panels = plt.subplots(1, len(found), figsize=(4.0 * len(found), 3.8))
    for axes, ((problem, policy), points) in zip(panels, found.items(), strict=True):
        steps = [row["step_size"] for row in points]
        axes.plot(steps, [row["bound"] for row in points], "--", color="tab:red",
                  label="bound of Theorem 1")  # fmt: skip
        axes.plot(steps, [row["predicted"] for row in points], "-", color="tab:blue",
                  label="predicted")  # fmt: skip
        axes.errorbar(steps, [row["measured"] for row in points],
                      [2 * row["stderr"] for row in points], fmt="o", color="black",
                      markersize=4, label="measured")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        shown = steps[::2]  # the ticks of a short logarithmic axis would run into each other
        axes.set_xticks(shown, [f"{step:.1e}" for step in shown])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{problem}, {policy}", fontsize=10)
        axes.set_xlabel("step size")
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("mean squared distance to w^o")
    panels[0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def gain_figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Measured against predicted gain."""
    figure, panels = plt.subplots(1, 2, figsize=(9.0, 4.4), sharex=True, sharey=True)
    for axes, (kind, title) in zip(
        panels,
        (("oracle", "with the probabilities predicted"), ("memory", "as memory learns them")),
        strict=True,
    ):
        ends = [min(r["predicted_gain_db"] for r in rows) - 1, 18.0]
        axes.plot(ends, ends, color="grey", linewidth=1, label="equal")
        low, high = (np.array(ends) + shift for shift in (-1, 1))
        axes.fill_between(ends, low, high, color="grey", alpha=0.15, label="± 1 dB")
        for side, (colour, marker) in LOOKS.items():
            chosen = [row for row in rows if row["side"] == side]
            axes.errorbar(
                [row["predicted_gain_db"] for row in chosen],
                [row[f"{kind}_gain_db"] for row in chosen],
                [2 * row[f"{kind}_stderr_db"] for row in chosen],
                fmt=marker, color=colour, markersize=5, linewidth=1, label=side,
            )  # fmt: skip
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("predicted gain (dB)")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("measured gain (dB)")
    panels[0].legend(frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def gain_table(rows: list[dict[str, Any]]) -> str:
    """Every case."""
    return markdown(
        ["problem", "importance of", "predicted", "measured, oracle", "measured, memory",
         "steady state"],
        [
            [
                row["problem"], row["side"], f"{row['predicted_gain_db']:.2f}",
                f"{row['oracle_gain_db']:.2f} ± {row['oracle_stderr_db']:.2f}",
                f"{row['memory_gain_db']:.2f} ± {row['memory_stderr_db']:.2f}",
                f"{row['steady_gain_db']:.2f}",
            ]
            for row in rows
        ],
    )  # fmt: skip


def gains(folder: Path) -> list[dict[str, Any]]:
    """What is predicted and measured on every problem, for importance of agents, examples, both."""
    results, rows = load_results(folder), []
    levels = {a.name: np.array(a.summary["levels"]) for a in results.algorithms}
    for task in read_experiment(STUDY).tasks:
        found = {name: levels[task.title + name] for name in task.algorithms}
        mean = {name: each.mean() for name, each in found.items()}
        spread = {
            name: each.std(ddof=1) / np.sqrt(each.size) / mean[name] for name, each in found.items()
        }
        problem, _ = problem_of(task.source)
        late = np.linspace(task.rounds // 2, task.rounds, 50).astype(int)
        curve = {
            name: predict(problem, method).curve(late, problem.optimum).mean()
            for name, method in task.algorithms.items()
            if "memory" not in name
        }
        active = task.algorithms["uniform"].num_active
        steady = diagnose(problem, num_active=active).options
        for side in LOOKS:
            row = {
                "problem": task.title.removesuffix(": "), "side": side, "rounds": task.rounds,
                "steady_gain_db": steady[side].gain_db,
                "predicted_gain_db": 10 * np.log10(curve["uniform"] / curve[f"oracle, {side}"]),
            }  # fmt: skip
            for kind in ("oracle", "memory"):
                name = f"{kind}, {side}"
                row[f"{kind}_gain_db"] = 10 * np.log10(mean["uniform"] / mean[name])
                error = np.hypot(spread["uniform"], spread[name])
                row[f"{kind}_stderr_db"] = 10 / np.log(10) * error
            rows.append(row)
    return rows


def error(rows: list[dict[str, Any]], kind: str, said: str = "predicted") -> float:
    """The mean absolute difference of predicted and measured gain."""
    return float(np.mean([abs(r[f"{said}_gain_db"] - r[f"{kind}_gain_db"]) for r in rows]))


def gain_words(rows: list[dict[str, Any]]) -> str:
    """Where memory is farthest from what was predicted."""
    worst = max(rows, key=lambda r: abs(r["predicted_gain_db"] - r["memory_gain_db"]))
    return (
        f"`memory` is farthest off on {worst['problem']} ({worst['side']}: predicted "
        f"{worst['predicted_gain_db']:.1f} dB, measured {worst['memory_gain_db']:.1f} dB). It has "
        "no score for an example that was never drawn, and these rounds reach few of the examples."
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of isfed run theory.toml")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    study = json.loads(options.results.read_text())
    rows = {name: part["rows"] for name, part in study.items()} | {"gain": gains(options.folder)}
    figures = DOCS / "figures"
    figures.mkdir(exist_ok=True)
    bound_figure(rows["bound"], figures / "theory-bound.png")
    gain_figure(rows["gain"], figures / "theory-gain.png")
    bounded = [row for row in rows["variance"] if row["bound"] is not None]
    unbounded = len(rows["variance"]) - len(bounded)
    limits = "; ".join(
        f"{problem} with {policy} probabilities {found[0]['limit']:.1e}"
        for (problem, policy), found in groups(rows["bound"]).items()
    )
    loads = ", ".join(f"{name} {part['load']:.1f}" for name, part in study.items())
    text = Template((HERE / "theory_page.txt").read_text()).substitute(
        machine=f"{os.cpu_count()} cores ({platform.machine()}), load at the end of each part: "
        f"{loads}",
        limits=limits,
        draws=f"{min(row['draws'] for row in rows['variance']):,}",
        variance_table=variance_table(rows["variance"]),
        largest_z=f"{max(abs(row['z']) for row in rows['variance']):.2f}",
        num_z=len(rows["variance"]),
        below=sum(row["measured"] < row["bound"] for row in bounded),
        num_bounds=len(bounded),
        no_bound=f" ({unbounded} have none: a probability is 0)" if unbounded else "",
        optimal_table=markdown(
            ["scale", "tries", "least", "most"],
            [
                [f"{r['scale']:g}", str(r["tries"]), f"{r['least']:.5f}", f"{r['most']:.4g}"]
                for r in rows["optimal"]
            ],
        ),
        bound_table=bound_table(rows["bound"]),
        bound_words=bound_words(rows["bound"]),
        gain_rounds=f"{rows['gain'][0]['rounds'] // 2:,} to {rows['gain'][0]['rounds']:,}",
        gain_table=gain_table(rows["gain"]),
        num_gains=len(rows["gain"]),
        num_problems=len({row["problem"] for row in rows["gain"]}),
        error_oracle=f"{error(rows['gain'], 'oracle'):.2f}",
        error_memory=f"{error(rows['gain'], 'memory'):.2f}",
        error_steady=f"{error(rows['gain'], 'oracle', 'steady'):.2f}",
        gain_words=gain_words(rows["gain"]),
    )
    for page, part in zip((PAGE, APPENDIX), text.split(MARK), strict=True):
        page.write_text(part)
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
