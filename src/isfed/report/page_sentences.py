"""The sentences of a page: what was run, the verdict, what follows from it, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from isfed.report.comparison_report import agreement_line, more_work_line, rounds_lines
from isfed.report.diagnosis_report import first_step_lines, strategies_line, sure_line
from isfed.report.networks_report import networks_verdict
from isfed.report.page_curves import Quantity, quantities
from isfed.report.page_data import level_cell
from isfed.studies.results_reader import AlgorithmResult, Results

MEANING = {
    "experiment": "An experiment",
    "tuned": "Methods at one step size, and each again at its own best one",
    "levels": "Every method on every problem, a level for each run",
    "comparison": "Ways to learn, each at its own best step size",
    "heterogeneity": "The gain of importance sampling over the heterogeneity of the agents",
    "diagnosis": "What importance sampling would do, predicted without training",
    "systems": "Every system that the paper names",
    "networks": "Neural networks, every method at its own best step size",
    "leaderboard": "Methods tuned alike, on seeds that nothing was chosen on",
}
MOST_NAMES = 8  # in a warning


def by_problem(results: Results) -> list[tuple[str, Results]]:
    """The algorithms on each problem, if a study has several; else all of them."""
    parts: dict[str, list[AlgorithmResult]] = {}
    for algorithm in results.algorithms:
        parts.setdefault(str(algorithm.summary.get("problem", "")), []).append(algorithm)
    return [(title, replace(results, algorithms=tuple(part))) for title, part in parts.items()]


def summary_line(results: Results) -> str:
    """What was run."""
    what = "ways" if results.kind == "comparison" else "algorithms"
    text = f"{MEANING.get(results.kind, results.kind)}: {len(results.algorithms)} {what}"
    if results.kind == "leaderboard":
        rows = results.summary["algorithms"]
        methods, problems = (len({row[key] for row in rows}) for key in ("method", "problem"))
        text = f"{MEANING['leaderboard']}: {methods} methods on {problems} problems"
    if results.kind == "diagnosis":
        setting = results.summary["setting"]
        text = f"{MEANING['diagnosis']}: {setting['num_agents']:,} agents, {setting['rows']:,} rows"
    if "rounds" in results.summary:
        text += ", {rounds:,} rounds, {repetitions:,} repetitions".format_map(results.summary)
    return f"{text}."


def verdict(results: Results) -> str:
    """The answer in one text: that of the folder, or who is best by how much."""
    for key in ("verdict", "answer", "recommendation"):
        if results.summary.get(key):
            return str(results.summary[key])
    parts = by_problem(results)
    if len(parts) > 1:
        return " ".join(f"On {problem}: {verdict(part)}" for problem, part in parts)
    if measure := deciding(results):
        return measured_verdict(results, measure)
    rows = [a for a in results.algorithms if math.isfinite(a.number("gain_db"))]
    if len(rows) < 2:
        return "There is nothing to compare: fewer than two algorithms ended with a known level."
    best = max(rows, key=lambda a: a.number("gain_db"))
    gain, error = best.number("gain_db"), best.number("gain_stderr_db")
    first = results.algorithms[0]
    against = "FedAvg at the same point" if results.kind == "heterogeneity" else first.name
    if math.isnan(error):
        return (
            f"{best.name} ends {gain:.1f} dB below {against}; with one repetition there is no "
            "standard error, so chance may have made the difference."
        )
    if best is first or gain <= 2.0 * error:
        return f"No algorithm ends below {against} by more than two standard errors."
    text = f"{best.name} ends lowest: {gain:.1f} ± {error:.1f} dB below {against}"
    if False in (best.settled, first.settled):
        return f"{text}, but the run was too short to have settled."
    return f"{text}."


def deciding(results: Results) -> Quantity | None:
    """The measure that decides; None where there is an msd, or no such measure."""
    if not results.summary.get("no_msd"):
        return None
    known = {quantity.key: quantity for quantity in quantities(results)}
    return next((known[key] for key in ("accuracy", "loss") if key in known), None)


def measured_verdict(results: Results, quantity: Quantity) -> str:
    """Who ends best, beside the first algorithm, or beside the next best if that is the first."""

    def at(algorithm: AlgorithmResult) -> str:
        level = level_cell(*quantity.level(algorithm), quantity.unit).text
        return f"at {level}" if quantity.unit else f"at a {quantity.key} of {level}"

    word = f" {quantity.key}" if quantity.unit else ""  # a bare number is named already
    rows = [a for a in results.algorithms if math.isfinite(quantity.level(a)[0])]
    sign = 1.0 if quantity.rising else -1.0
    ranked = sorted(rows, key=lambda a: -sign * quantity.level(a)[0])
    if not ranked:
        return "There is nothing to compare: no algorithm ended with a known level."
    best, first = ranked[0], results.algorithms[0]
    if len(ranked) == 1:
        return f"{best.name} ends {at(best)}{word}; there is nothing to compare it with."
    other = first if best is not first and first in ranked else ranked[1]
    place = ("highest, " if quantity.rising else "lowest, ") if len(ranked) > 2 else ""
    next_best = best is first and len(ranked) > 2
    name = f"the next best, {other.name}," if next_best else other.name
    text = f"{best.name} ends {place}{at(best)}{word}, {name} {at(other)}"
    (level, error), (other_level, other_error) = map(quantity.level, (best, other))
    gap, spread = abs(level - other_level), math.hypot(error, other_error)
    if math.isnan(spread):
        text += "; with one repetition there is no standard error, so chance may have made this."
    elif gap <= 2.0 * spread:
        text += ": no clear difference."
    else:
        gap_text = level_cell(gap, spread, quantity.gap_unit).text
        repetitions = int(results.summary["repetitions"])
        if repetitions < 3:  # the standard error of two is too uncertain itself
            text += (
                f": {gap_text} apart, but {repetitions} repetitions are too few to call that clear."
            )
        else:
            text += f": a clear difference, {gap_text}."
    return text


def advice(results: Results) -> Iterator[str]:
    """Of a diagnosis: how sure it is, the step size to begin with, the other ways to sample.

    Of a comparison: what a diagnosis predicts, and why that differs. Of networks: the rounds to
    FedAvg's accuracy.
    """
    if results.summary.get("networks"):
        yield from networks_verdict(results)
    if results.kind == "leaderboard":
        yield from results.summary["factorial"].get("sentences", ())
    if results.kind == "comparison":
        yield from rounds_lines(results)
        yield from filter(None, (more_work_line(results), agreement_line(results)))
    if "settling_rounds" not in results.summary or results.summary.get("degenerate"):
        return
    if cause := results.summary.get("cause"):
        yield cause
    yield sure_line(results)
    yield from first_step_lines(results)
    if "ways" in results.summary and not results.summary.get("tuned"):
        yield strategies_line(results)


def warnings(results: Results) -> Iterator[str]:
    """What to know before trusting the numbers."""
    if results.kind == "leaderboard":  # it has a table of them
        return
    for algorithm in results.diverged:
        yield (
            f"{algorithm.name} diverged in round {algorithm.diverged_round:,}; use a smaller step "
            f"size than {algorithm.step_size:.3g}."
        )
    moving = [a.name for a in results.algorithms if a.settled is False]
    if results.kind == "comparison":
        moving = []  # a step size that is best for so many rounds is never settled before them
    if moving:
        more = f" and {len(moving) - MOST_NAMES} more" if len(moving) > MOST_NAMES else ""
        yield (
            f"Not settled at the end: {'; '.join(moving[:MOST_NAMES])}{more}. A gain then says "
            "who is faster, not who ends lower: use more rounds."
        )
    yield from results.summary.get("remarks", ())
    if results.summary.get("no_msd") and deciding(results) is None:
        yield f"The distance to the optimum is not known: {results.summary['no_msd']}"
    yield from edge_lines(results)


def edge_lines(results: Results) -> Iterator[str]:
    """Whose best step size is at the edge of those tried, in one line; of two both are."""
    tried = {n: s for n, s in results.searches.items() if len(s.losses) > 1}  # else none was chosen
    if tried and all(len(search.losses) == 2 for search in tried.values()):
        yield "Only two step sizes were tried for each algorithm; a better one may lie beyond them."
        return
    edge = [f"{name} ({s.best:.3g})" for name, s in tried.items() if s.at_edge]
    if edge:
        yield (
            f"The best step size is at the edge of those tried for {'; '.join(edge)}: a better one "
            "may lie beyond."
        )
