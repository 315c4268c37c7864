"""Tables and figure of docs/appendix/networks.md from the folders of `isfed reproduce networks`.

    python benchmarks/networks_page.py [runs/networks]

With a folder, every setting in it that is finished replaces what benchmarks/networks.json has of
it; the page is made from that file, so that it can be made again without the study.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from isfed.base.atomic_files import read_json, write_whole
from isfed.report.networks_report import (
    accuracy_curves,
    draw_accuracy,
    percent,
    rounds_to_fedavg,
    verdict_lines,
)
from isfed.studies import StoreError, load_results
from isfed.studies.networks_study import SETTINGS
from isfed.studies.results_reader import Measurements, Results

HERE = Path(__file__).parent
KEPT = HERE / "networks.json"
PAGE = HERE.parent / "docs" / "appendix" / "networks.md"
FIGURE = HERE.parent / "docs" / "figures" / "networks-accuracy.png"
BEGIN = "<!-- begin: made by `python benchmarks/networks_page.py` -->"
END = "<!-- end -->"
PICTURE = f"""
![Accuracy against rounds in every setting, our ways on the left and those of others on the right](
../figures/{FIGURE.name})
""".replace("(\n", "(")
OURS = ("FedAvg", "importance", "spread", "difference", "drift", "drift, importance")
OTHERS = ("FedAvg", "FedProx", "SCAFFOLD", "FedVARP", "clustered", "Power-of-Choice")


def kept_of(results: Results) -> dict[str, Any]:
    """What the page needs of one results folder, in few digits."""
    summary = results.summary
    curves = {
        name: {
            "rounds": curve.rounds.tolist(),
            "mean": np.round(curve.mean, 4).tolist(),
            "stderr": np.round(curve.stderr, 4).tolist(),
        }
        for name, curve in accuracy_curves(results).items()
    }
    return {
        "title": summary["title"],
        "rounds": summary["rounds"],
        "repetitions": summary["repetitions"],
        "rows": [short(row) for row in summary["networks"]],
        "at_edge": [name for name, found in results.searches.items() if is_at_edge(found)],
        "curves": curves,
    }


def is_at_edge(search: Any) -> bool:
    """Whether a step size was chosen among several and is the smallest or the largest of them."""
    return len(search.losses) > 1 and search.at_edge


def short(value: Any) -> Any:
    """The same with five digits."""
    if isinstance(value, Mapping):
        return {key: short(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [short(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def collect(folder: Path) -> None:
    """Take the finished settings of a folder into the file that is kept."""
    kept = read_json(KEPT) if KEPT.exists() else {}
    for name in SETTINGS:
        try:
            kept[name] = kept_of(load_results(folder / name))
        except StoreError as error:
            print(f"{name} is left as it was: {error}")
    lines = [f'"{n}":{json.dumps(kept[n], separators=(",", ":"))}' for n in SETTINGS if n in kept]
    write_whole(KEPT, ("{" + ",\n".join(lines) + "}\n").encode())


def curves_of(found: Mapping[str, Any]) -> dict[str, Measurements]:
    """The curves that are kept of one setting."""
    return {
        name: Measurements(*(np.array(curve[key]) for key in ("rounds", "mean", "stderr")))
        for name, curve in found["curves"].items()
    }


def table(found: Mapping[str, Any]) -> str:
    """Methods down; accuracy, and what it took to reach the fixed accuracies; the best is bold."""
    rows = found["rows"]
    targets = [f"{100 * target['accuracy']:g}%" for target in rows[0]["targets"]]
    heads = ["method", "step size", "accuracy (%)", *targets, "as FedAvg"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    best = max((row["accuracy"], row["name"]) for row in rows if not row["diverged"])[1]
    first = rounds_to_fedavg(rows, curves_of(found))
    for row in rows:
        step = f"{row['step_size']:.3g}" + ("*" if row["name"] in found["at_edge"] else "")
        if row["diverged"]:
            lines.append(f"| {row['name']} | {step} | diverged |" + " |" * (len(heads) - 3))
            continue
        accuracy = percent(row["accuracy"], row["accuracy_stderr"])
        accuracy = f"**{accuracy}**" if row["name"] == best else accuracy
        cells = [row["name"], step, accuracy, *map(reached, row["targets"])]
        lines.append(f"| {' | '.join(cells)} | {first.get(row['name'], '')} |")
    return "\n".join(lines)


def reached(target: Mapping[str, Any]) -> str:
    """Rounds / megabytes / seconds to an accuracy; nothing if it was not reached."""
    if target["rounds"] is None:
        return ""
    return f"{target['rounds']} / {target['megabytes']:.3g} / {target['seconds']:.3g}"


def steadiness(found: Mapping[str, Any]) -> str:
    """How every method stands to FedAvg's final accuracy: a first time may be a lucky one."""
    level = next(row["accuracy"] for row in found["rows"] if row["name"] == "FedAvg")
    lines = []
    for name, curve in curves_of(found).items():
        above = curve.mean >= level
        below = np.flatnonzero(~above)
        after = curve.rounds[below[-1] + 1 :] if below.size else curve.rounds
        first = curve.rounds[above][0] if above.any() else "never"
        good = after[0] if after.size else "never"
        late = above[curve.rounds >= found["rounds"] / 2]  # empty for one that diverged before
        share = late.mean() if late.size else 0.0
        lines.append(f"  {name:18s} first {first}, for good {good}, second half {share:.0%} above")
    return "\n".join(lines)


def tables(kept: Mapping[str, Any]) -> str:
    """All tables, in markdown, in the order of the settings."""
    parts = []
    for name in SETTINGS:
        if name in kept:
            found = kept[name]
            size = f"{found['repetitions']} seeds, {found['rounds']} rounds"
            said = " ".join(verdict_lines(found["rows"], curves_of(found), found["rounds"]))
            parts.append(f"#### {name}: {found['title']}\n\n{size}. {said}\n\n{table(found)}\n")
    return "\n".join(parts)


def draw(kept: Mapping[str, Any]) -> None:
    """Accuracy against rounds: a row for each setting, our ways beside those of others."""
    names = [name for name in SETTINGS if name in kept]
    height = 1.9 * len(names) + 0.9
    figure, panels = plt.subplots(
        len(names), 2, figsize=(8.4, height), sharey="row", squeeze=False, layout="constrained"
    )
    for (left, right), name in zip(panels, names, strict=True):
        found = kept[name]
        curves = curves_of(found)
        level = next((100 * r["accuracy"] for r in found["rows"] if r["name"] == "FedAvg"), None)
        for axes, methods in ((left, OURS), (right, OTHERS)):
            draw_accuracy(axes, curves, [m for m in methods if m in curves])
            if level is not None:
                axes.axhline(level, color="black", linewidth=0.7, linestyle=":")
            axes.set_xlim(0, found["rounds"])
        left.set_ylim(*limits(curves))
        left.set_ylabel("accuracy (%)")
        left.set_title(f"{name}: {found['title']}", fontsize=9, loc="left")
    for axes, title in zip(panels[0], ("FedAvg and ours", "FedAvg and others"), strict=True):
        axes.legend(frameon=False, fontsize=8, ncols=3, loc="lower left",
                    bbox_to_anchor=(0.0, 1.14), title=title, handlelength=3.2,
                    columnspacing=1.2)  # fmt: skip
    for axes in panels[-1]:
        axes.set_xlabel("round")
    figure.savefig(FIGURE, dpi=110, metadata={"Software": None})
    plt.close(figure)


def limits(curves: Mapping[str, Measurements]) -> tuple[float, float]:
    """Percent: from what the slower half has reached after a sixth of the rounds, to the best."""
    early = [curve.mean[len(curve.mean) // 6] for curve in curves.values()]
    best = max(float(np.nanmax(curve.mean + curve.stderr)) for curve in curves.values())
    low = float(np.nanmedian(early))
    return 100 * low, 100 * (best + 0.05 * (best - low))


def page(kept: Mapping[str, Any]) -> None:
    """Put the figure and the tables into the page, between the two marks."""
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    draw(kept)
    PAGE.write_text(f"{head}{BEGIN}\n{PICTURE}\n{tables(kept)}\n{END}{tail}", encoding="utf-8")


def main() -> None:
    """Collect what is finished, then make the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="of the study, such as runs/networks")
    given = parser.parse_args()
    if given.folder is not None:
        collect(given.folder)
    kept = read_json(KEPT)
    page(kept)
    for name, found in kept.items():
        print(f"{name}: rounds at FedAvg's final accuracy\n{steadiness(found)}")
    print(f"{PAGE} and {FIGURE} have the settings {', '.join(n for n in SETTINGS if n in kept)}")


if __name__ == "__main__":
    main()
