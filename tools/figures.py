"""The figures of the README and of the concept pages, as SVG in docs/figures.

python tools/figures.py        all of them, a minute or two
python tools/figures.py gain   one of them
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from isfed import (
    OUTLIERS,
    PAPER,
    Average,
    Deville,
    DynamicFedAvg,
    ISFedAvg,
    Served,
    Stream,
    diagnose,
    inclusion_probabilities,
    simulate,
)

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
LOOKS = {
    "uniform": {"color": "tab:blue"},
    "memory": {"color": "black", "linestyle": (0, (1, 1.2))},
    "uniform averaged": {"color": "tab:blue", "linestyle": (0, (9, 1.5))},
    "memory averaged": {"color": "black", "linestyle": (0, (6, 2))},
    "biased": {"color": "tab:red", "linestyle": (0, (6, 2))},
}


def save(figure: plt.Figure, name: str) -> None:  # pyright: ignore[reportPrivateImportUsage]
    """Write an SVG; the same figure gives the same file."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    text = "\n".join(line.rstrip() for line in buffer.getvalue().decode().splitlines()) + "\n"
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")
    print(f"docs/figures/{name}.svg")


def smooth(values: np.ndarray, width: int = 25) -> np.ndarray:
    """A centred mean, without the ends."""
    return np.convolve(values, np.full(width, 1.0 / width), mode="valid")


def msd() -> None:
    """The error over the rounds at equally long steps, of the last model and of an average."""
    problem = PAPER.make(seed=0)
    common = {"step_size": 0.01, "num_active": 6}
    fedavg = DynamicFedAvg(**common)  # FedAvg whose agents divide their step by E_k, as ISFedAvg's
    runs = {
        "uniform sampling": ("uniform", fedavg),
        "importance sampling (memory)": ("memory", ISFedAvg(**common)),
        "uniform, average of the last half": ("uniform averaged", Served(fedavg, Average())),
        "importance, average of the last half": (
            "memory averaged",
            ISFedAvg(**common, average=True),
        ),
    }
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for label, (look, algorithm) in runs.items():
        history = simulate(problem, algorithm, rounds=3000, repetitions=20)
        curve = 10.0 * np.log10(smooth(history.msd.mean(axis=0)))
        axes.plot(np.arange(curve.size) + 13, curve, label=label, lw=1.6, **LOOKS[look])
        print(f"{label}: {history.steady().db:.2f} dB, se {history.steady().stderr_db:.2f}")
    axes.set_xlabel("round")
    axes.set_ylabel("mean-square deviation (dB)")
    axes.set_title("300 agents, 6 of them per round, step size 0.01, 20 repetitions", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    save(figure, "msd")


def inclusion() -> None:
    """From scores to inclusion probabilities: proportional, capped at 1, with a floor."""
    scores = np.array([0.2, 0.5, 0.5, 1.0, 1.0, 1.5, 2.0, 9.0])
    size, floor = 3, 0.2
    share = scores / scores.sum()
    mixed = (1.0 - floor) * share + floor / scores.size
    rows = {
        "$L p_k$, before the cap": size * share,
        "inclusion probability": inclusion_probabilities(scores, size),
        f"with a floor of {floor}": inclusion_probabilities(mixed, size),
    }
    figure, axes = plt.subplots(figsize=(7, 3.2))
    place = np.arange(scores.size)
    for i, (label, values) in enumerate(rows.items()):
        colour = ("lightsteelblue", "tab:blue", "tab:green")[i]
        axes.bar(place + 0.27 * (i - 1), values, 0.25, label=label, color=colour)
    axes.axhline(1.0, color="grey", lw=0.8, ls=":")
    axes.set_xticks(place, [f"{score:g}" for score in scores])
    axes.set_xlabel("score of the agent")
    axes.set_title(f"{size} of {scores.size} agents are drawn", fontsize=10)
    axes.legend(frameon=False)
    save(figure, "inclusion")


def weights() -> None:
    """Estimates of a mean gradient: uniform, by importance with weights, and without them."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0.5, 0.3, 45), rng.normal(6.0, 1.0, 5)])
    size, draws = 8, 20_000
    pi = inclusion_probabilities(np.abs(values), size)
    stream = Stream(1)
    chosen = np.array([Deville().draw(pi, stream) for _ in range(draws)])
    equal = np.array([rng.permutation(values.size)[:size] for _ in range(draws)])
    estimators = {
        "uniform": ("uniform", values[equal].mean(axis=1)),
        "by importance, reweighted": (
            "memory",
            (values[chosen] / pi[chosen]).sum(axis=1) / values.size,
        ),
        "by importance, not reweighted": ("biased", values[chosen].mean(axis=1)),
    }
    figure, axes = plt.subplots(figsize=(7, 3.2))
    bins = np.linspace(-0.2, 6.0, 250)
    for label, (look, estimates) in estimators.items():
        heights, _ = np.histogram(estimates, bins, density=True)
        axes.plot(bins[1:], np.minimum(heights, 6.0), label=label, **LOOKS[look])
        error = estimates.std() / np.sqrt(draws)
        print(f"{label}: mean {estimates.mean():.4f} (se {error:.4f}), sd {estimates.std():.3f}")
    axes.axvline(values.mean(), color="grey", lw=0.8, ls=":")
    axes.annotate("truth", (values.mean(), 5.6), xytext=(4, 0), textcoords="offset points")
    axes.set_xlabel(f"estimate of the mean of {values.size} gradients from {size} of them")
    axes.set_ylabel("density (cut at 6)")
    axes.legend(frameon=False)
    save(figure, "weights")


def gain() -> None:
    """Predicted gain against how much noisier a tenth of the agents are."""
    ratios = np.geomspace(1.0, 100.0, 9)
    rows = {"agents": [], "examples": [], "both": []}
    for ratio in ratios:
        recipe = OUTLIERS.replace(noisy_share=0.1, noise_ratio=float(ratio), num_agents=100)
        diagnosis = diagnose(recipe.make(seed=0), num_active=6)
        for name, values in rows.items():
            values.append(diagnosis.options[name].gain_db)
    for name, values in rows.items():
        print(name, " ".join(f"{value:.1f}" for value in values))
    figure, axes = plt.subplots(figsize=(7, 3.2))
    styles = (("tab:orange", "--"), ("tab:purple", ":"), ("black", "-"))
    for (name, values), (colour, dashes) in zip(rows.items(), styles, strict=True):
        label = {"both": "agents and examples"}.get(name, f"{name} only")
        axes.plot(ratios, values, label=label, color=colour, ls=dashes, marker="o", ms=3)
    axes.axhline(0.0, color="grey", lw=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("noise of the noisy tenth of the agents, relative to the others")
    axes.set_ylabel("gain over uniform (dB)")
    axes.legend(frameon=False)
    save(figure, "gain")


FIGURES = {"msd": msd, "inclusion": inclusion, "weights": weights, "gain": gain}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or FIGURES:
        FIGURES[wanted]()
