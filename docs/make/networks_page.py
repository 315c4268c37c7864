"""Tables and figure of docs/appendix/networks.md from the folders of `isfed reproduce networks`.

    python docs/make/networks_page.py [runs/networks]

With a folder, every setting in it that is finished replaces what docs/make/networks.json has of
it; the page is made from that file, so that it can be made again without the study.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from isfed.base.atomic_files import read_json, write_whole
from isfed.report.networks_report import (
    COLUMNS,
    accuracy_curves,
    draw_accuracy,
    table_row,
    verdict_lines,
)
from isfed.studies import StoreError, load_results
from isfed.studies.experiment_config import study_settings
from isfed.studies.results_reader import Measurements, Results

HERE = Path(__file__).parent
SETTINGS = study_settings("networks")
KEPT = HERE / "networks.json"
PAGE = HERE.parent / "appendix" / "networks.md"
FIGURE = HERE.parent / "figures" / "networks-accuracy.png"
BEGIN = "<!-- begin: made by `python docs/make/networks_page.py` -->"
END = "<!-- end -->"
PICTURE = f"\n![Accuracy against rounds in every setting](../figures/{FIGURE.name})\n"
DRAWN = ("FedAvg", "FedAvg, averaged", "FedAdam, averaged", "clustered, averaged", "default")


def kept_of(results: Results) -> dict[str, Any]:
    """What the page needs of one results folder, in few digits."""
    summary, steps = results.summary, results.config["step_sizes"]
    curves = {
        name: {
            "rounds": curve.rounds.tolist(),
            "mean": np.round(curve.mean, 4).tolist(),
            "stderr": np.round(curve.stderr, 4).tolist(),
        }
        for name, curve in accuracy_curves(results).items()
        if name in DRAWN
    }
    return {
        "title": summary["title"],
        "rounds": summary["rounds"],
        "repetitions": summary["repetitions"],
        "tuning": [steps["repetitions"], steps["rounds"]],
        "rows": [short(row) for row in summary["networks"]],
        "curves": curves,
    }


def short(value: Any) -> Any:
    """The same with five digits."""
    if isinstance(value, Mapping):
        return {key: short(part) for key, part in value.items() if key != "seconds_per_round"}
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


def table(found: Mapping[str, Any]) -> str:
    """Methods down; the best accuracy is bold."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    best = max(row["accuracy"] for row in found["rows"] if not row["diverged"])
    for row in found["rows"]:
        cells = table_row(row)
        if not row["diverged"] and row["accuracy"] == best:
            cells[2] = f"**{cells[2]}**"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def against(kept: Mapping[str, Any], rival: str) -> str:
    """How the default stands to a rival in every setting."""
    heads = ("setting", "accuracy of the rival (%)", "of the default (%)", "rounds to the rival's")
    lines = [f"| {' | '.join(heads)} |", "|---|---:|---:|---:|"]
    for name in SETTINGS:
        rows = {row["name"]: row for row in kept.get(name, {}).get("rows", ())}
        if rival in rows and "default" in rows:
            one, ours = table_row(rows[rival]), table_row(rows["default"])
            level = rows[rival]["accuracy"]
            curve = curves_of(kept[name])["default"]
            reached = curve.rounds[curve.mean >= level]
            first = str(reached[0]) if reached.size else "-"
            lines.append(f"| {name} | {one[2]} | {ours[2]} | {first} of {kept[name]['rounds']} |")
    return "\n".join(lines)


def curves_of(found: Mapping[str, Any]) -> dict[str, Measurements]:
    """The curves that are kept of one setting."""
    return {
        name: Measurements(*(np.array(curve[key]) for key in ("rounds", "mean", "stderr")))
        for name, curve in found["curves"].items()
    }


def tables(kept: Mapping[str, Any]) -> str:
    """All tables, in markdown, in the order of the settings."""
    parts = ["## The default against its rivals\n"]
    for rival in ("FedAvg, averaged", "FedAdam, averaged", "clustered, averaged"):
        parts.append(f"Against {rival}:\n\n{against(kept, rival)}\n")
    parts.append("## All methods\n")
    for name in SETTINGS:
        if name in kept:
            found = kept[name]
            seeds, rounds = found["tuning"]
            size = (
                f"{found['repetitions']} seeds of {found['rounds']} rounds; steps tuned on {seeds} "
                f"other seeds of {rounds} rounds."
            )
            said = " ".join(verdict_lines(found["rows"], found["rounds"]))
            parts.append(f"### {name}: {found['title']}\n\n{size} {said}\n\n{table(found)}\n")
    return "\n".join(parts)


def draw(kept: Mapping[str, Any]) -> None:
    """Accuracy against rounds, one panel for each setting."""
    names = [name for name in SETTINGS if name in kept]
    figure, panels = plt.subplots(
        -(-len(names) // 2), 2, figsize=(8.4, 2.4 * -(-len(names) // 2) + 0.6), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(panels.flat, names, strict=False):
        curves = curves_of(kept[name])
        draw_accuracy(axes, curves, [m for m in DRAWN if m in curves])
        title = textwrap.fill(f"{name}: {kept[name]['title']}", 60)
        axes.set_title(title, fontsize=8, loc="left")
        axes.set_ylim(bottom=100 * min(float(c.mean[len(c.mean) // 6]) for c in curves.values()))
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy (%)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(FIGURE, dpi=110, metadata={"Software": None})
    plt.close(figure)


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
    print(f"{PAGE} and {FIGURE} have the settings {', '.join(n for n in SETTINGS if n in kept)}")


if __name__ == "__main__":
    main()
