"""What a diagnosis leaves behind: a table, a figure, a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.table import Table

from isfed.base.files import write_whole
from isfed.experiments.store import locked
from isfed.problems import Problem
from isfed.report.figures import save_figure
from isfed.report.folders import check_free
from isfed.theory.diagnosis import Diagnosis

NAMES = {
    "uniform": "uniform sampling",
    "agents": "importance sampling of agents",
    "examples": "importance sampling of examples",
    "both": "importance sampling of both",
}


def diagnosis_table(found: Diagnosis) -> Table:
    """The four ways to sample, side by side."""
    table = Table(title=f"{found.problem}: predicted at {found.at}", title_justify="left")
    table.add_column("")
    for heading in (
        "variance", "from agents", "ratio", "gain, dB", "stable step", "agents", "examples",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    num_active = found.setting["num_active"]
    batch = found.options["uniform"].examples_size  # equal chances: the batch itself
    for name, option in found.options.items():
        limit = "unknown" if option.step_limit is None else f"{option.step_limit:.3g}"
        table.add_row(
            NAMES[name],
            f"{option.variance:.3g}",
            f"{100 * option.agents_share:.0f}%",
            f"{option.variance_ratio:.3g}",
            f"{option.gain_db:.2f}",
            limit,
            f"{option.agents_size / num_active:.0%}",
            f"{option.examples_size / batch:.0%}",
        )
    kind = "the mean squared distance to w^o" if found.weighted else "the gradient's variance"
    table.caption = (
        "variance of a round's gradient estimate, how many times smaller it is (ratio); gain in "
        f"{kind} that remains; largest stable step size of ISFedAvg so sampled (FedAvg, without "
        "1/E_k, has a smaller one); effective size of a draw of agents and of examples"
    )
    table.caption_justify = "left"
    return table


def setting_line(found: Diagnosis) -> str:
    """What was looked at, in words."""
    said = found.setting
    spans = [
        str(value) if isinstance(value, int) else f"{value[0]} to {value[1]}"
        for value in (said["batch_size"], said["local_steps"])
    ]
    return (
        f"{said['num_agents']} agents, {said['num_active']} a round (L); {said['rows']} rows, "
        f"{spans[0]} a step (B), {spans[1]} steps a turn (E); {said['num_params']} parameters, "
        f"{said['loss']}; probabilities of {said['policy']}, floor {said['floor']:g}"
    )


def settling_line(found: Diagnosis) -> str:
    """When the gain counts."""
    rounds = found.settling_rounds
    when = "" if rounds is None else f" (about {rounds:.2g} rounds at a quarter of the stable step)"
    return (
        f"This is the error that remains when the model has settled{when}; until then, at one step "
        "size, all ways to sample are equally fast."
    )


def dominant_lines(found: Diagnosis, names: Sequence | None = None) -> list[str]:
    """Which agents and examples would be drawn most, in words; `names` are those of the agents."""
    called = range(int(found.setting["num_agents"])) if names is None else names
    agents = ", ".join(f"{called[k]} ({times:.3g} times)" for k, times in found.top_agents)
    examples = ", ".join(
        f"row {n} of agent {called[k]} ({times:.3g} times)" for k, n, times in found.top_examples
    )
    return [
        f"agents drawn most, against uniform: {agents}",
        f"examples drawn most, against uniform: {examples}",
    ]


def constant_lines(found: Diagnosis) -> list[str]:
    """The paper's constants, or why one does not exist."""
    return [
        f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: none; {value}"
        for name, value in found.constants.items()
    ]


def save_diagnosis(folder: Path, problem: Problem, found: Diagnosis, *, overwrite: bool) -> None:
    """Write all there is of a diagnosis."""
    with locked(folder):
        check_free(folder, "diagnosis", overwrite=overwrite)
        inclusion_figure(folder, problem, found)
        write_diagnosis(folder, found)


def write_diagnosis(folder: Path, found: Diagnosis) -> Path:
    """diagnosis.json."""
    path = folder / "diagnosis.json"
    write_whole(path, (json.dumps(found.as_dict(), indent=2) + "\n").encode())
    return path


def inclusion_figure(folder: Path, problem: Problem, found: Diagnosis) -> list[Path]:
    """The inclusion probabilities of agents and of examples, sorted, beside the uniform ones."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.8))
    agents = np.sort(found.choices.agents)[::-1]
    left.plot(np.arange(1, agents.size + 1), agents, color="black", label="importance sampling")
    level = agents.sum() / agents.size
    left.axhline(level, color="tab:blue", linestyle=(0, (4, 2)), label="uniform")
    left.set_xlabel("agent, by rank")
    left.set_ylabel("inclusion probability, L p_k")
    sizes = problem.data.num_examples
    times = np.sort(found.choices.examples * np.repeat(sizes / problem.batch_size, sizes))[::-1]
    # A share of the rows, because a curve of a million points says no more than one of thousands.
    place = np.unique(np.geomspace(1, times.size, 2000).astype(int)) - 1
    right.plot((place + 1) / times.size, times[place], color="black", label="importance sampling")
    right.axhline(1.0, color="tab:blue", linestyle=(0, (4, 2)), label="uniform")
    right.set_xscale("log")
    right.set_xlabel("example, by rank, share of all")
    right.set_ylabel("inclusion probability over the uniform one")
    for axes, values in ((left, agents), (right, times)):
        axes.set_yscale("log")
        smallest = values[values > 0.0].min()
        axes.set_ylim(bottom=min(smallest / 1.5, 0.5 * values.max()))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    return save_figure(figure, folder, "inclusion")
