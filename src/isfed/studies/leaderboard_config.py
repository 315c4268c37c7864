"""A leaderboard as a TOML file: problems, methods, budgets, tuning, seeds, factorial."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from isfed.federation.virtual_clock import Clock
from isfed.methods.catalogue import Knob
from isfed.problems import Problem
from isfed.studies import dataset_config, neural_network_config  # noqa: F401  (they name data sets)
from isfed.studies.config_schema import (
    ConfigError,
    check_keys,
    check_known,
    nearest,
    read_value,
    whole_number,
    write_value,
)
from isfed.studies.experiment_config import load_toml, study_tables
from isfed.studies.leaderboard_entries import (
    PARTS,
    BoardMethod,
    compose,
    plugin_methods,
    read_method,
)
from isfed.studies.problem_sources import read_problem
from isfed.studies.study_engine import mean_curvature
from isfed.studies.work_cells import problem_of


@dataclass(frozen=True)
class BoardProblem:
    """A problem of a leaderboard.

    Attributes:
        name: in the tables.
        source: where it comes from.
        num_active: L, the same for all methods.
        clock: how fast the agents are, and how often they do not answer.
        tuned: whether methods are tuned on it; else it decides ties, at untuned step sizes.
    """

    name: str
    source: Any
    num_active: int
    clock: Clock
    tuned: bool = True

    @property
    def problem(self) -> Problem:
        """The problem itself, made once in a process."""
        return problem_of(self.source)[0]

    @cached_property
    def unit_step(self) -> float:
        """One over the mean curvature of the loss, around which step sizes are tried."""
        return 1.0 / mean_curvature(self.problem)

    @property
    def table(self) -> dict[str, Any]:
        """The [[problem]] that makes it again."""
        return {
            "name": self.name, "num_active": self.num_active, "tuned": self.tuned,
            "clock": write_value(self.clock), "source": self.source.describe(),
        }  # fmt: skip


@dataclass(frozen=True)
class SearchPoint:
    """One set of numbers that is tried: the step size in units of 1 / curvature, and knobs."""

    number: int
    step: float
    places: tuple[float, float]  # of the knobs in their ranges, from 0 to 1

    def knobs(self, method: BoardMethod, problem: BoardProblem) -> dict[str, Any]:
        """The values of a method's knobs."""
        count, active = problem.problem.num_agents, problem.num_active
        pairs = zip(method.knobs, self.places, strict=False)
        return {knob.name: knob_value(knob, at, count, active) for knob, at in pairs}


def knob_value(knob: Knob, at: float, num_agents: int, num_active: int) -> float | int:
    """The value of a knob at a place of its range, from 0 to 1.

    >>> knob_value(Knob("prox", 0.01, 1.0), 0.5, 20, 4)
    0.1
    >>> knob_value(Knob("candidates", 0.1, 1.0, "share of K"), 0.0, 20, 4)
    4
    """
    low, high = knob.low, knob.high
    if knob.scale == "log":
        return float(f"{low * (high / low) ** at:.6g}")
    value = low + (high - low) * at
    if knob.scale == "linear":
        return float(f"{value:.6g}")
    if knob.scale == "whole":
        return round(value)
    return min(num_agents, max(num_active, round(value * num_agents)))


def make_trials(count: int, low: float, high: float, *, first: int = 0) -> list[SearchPoint]:
    """Step sizes evenly on a logarithmic scale, and knobs by Halton's points.

    Everybody has the same ones, and no seed decides about them.

    Args:
        count: how many.
        low: the power of 10 of the smallest step size.
        high: the power of 10 of the largest.
        first: the number of the first trial.
    """
    from scipy.stats import qmc  # half a second to import

    places = qmc.Halton(2, scramble=False).fast_forward(first + 1).random(count).tolist()
    steps = (10.0 ** (low + (high - low) * (i + 0.5) / count) for i in range(count))
    return [
        SearchPoint(first + i, float(f"{step:.4g}"), tuple(place))
        for i, (step, place) in enumerate(zip(steps, places, strict=True))
    ]


NUMBERS = {  # of the protocol, with the least that each may be
    "version": 1, "rounds": 10, "repetitions": 2, "seed": 0, "trials": 1, "tuning_rounds": 10,
    "tuning_repetitions": 1, "tuning_seed": 0, "looks": 2, "untuned_repetitions": 2,
}  # fmt: skip
FACTORIAL_NUMBERS = {"trials": 1, "repetitions": 2}
TOP = (*NUMBERS, "name", "decades", "reference", "clock", "problem", "method", "factorial", "size")


@dataclass(frozen=True, eq=False)
class Protocol:
    """All that decides about a leaderboard, as its file says it.

    Attributes:
        numbers: rounds, repetitions, seeds and trials.
        decades: powers of 10 between the smallest and the largest step size that is tried.
        reference: the name of the method that the others are compared with.
        problems: in the order of the file.
        methods: the reference first.
        factorial: the names of the levels of every part, and the numbers of trials and seeds.
    """

    name: str
    numbers: Mapping[str, int]
    decades: float
    reference: str
    problems: tuple[BoardProblem, ...]
    methods: tuple[BoardMethod, ...]
    factorial: Mapping[str, Any]

    @property
    def tables(self) -> dict[str, Any]:
        """The file that makes it again, with every default."""
        return {
            "name": self.name, **self.numbers, "decades": self.decades,
            "reference": self.reference, "problem": [one.table for one in self.problems],
            "method": [dict(one.table) for one in self.methods],
            "factorial": dict(self.factorial),
        }  # fmt: skip

    def trials(self, count: int) -> list[SearchPoint]:
        """The trials of every method on a problem."""
        return make_trials(count, -self.decades / 2.0, self.decades / 2.0)

    def wider(self, count: int, end: int) -> list[SearchPoint]:
        """As many trials per decade in one more decade: below for end = -1, above for 1."""
        edge = end * self.decades / 2.0
        low, high = sorted((edge, edge + end))
        more = max(1, round(count / self.decades))
        return make_trials(more, low, high, first=count if end > 0 else count + more)

    def combinations(self) -> Iterator[tuple[BoardMethod | None, dict[str, str], str]]:
        """Every combination of parts: the method, or None and why the parts do not fit."""
        if not self.factorial:
            return
        for names in itertools.product(*(self.factorial[key] for key in PARTS)):
            parts = dict(zip(PARTS, names, strict=True))
            try:
                compose(parts, step_size=1.0, num_active=1, rounds=1)
            except ValueError as error:
                yield None, parts, str(error)
            else:
                yield read_method(parts, where="factorial"), parts, ""


def make_protocol(given: Mapping[str, Any], *, folder: Path = Path()) -> Protocol:
    """A leaderboard from the tables of its file; a ConfigError says what is wrong.

    Args:
        given: the tables.
        folder: what paths in the tables are relative to.
    """
    given = {"untuned_repetitions": given.get("repetitions"), **given}
    needed = (*NUMBERS, "decades", "reference", "problem", "method")
    check_keys(given, TOP, where="the leaderboard", needed=needed)
    numbers = {key: whole_number(given, key, least) for key, least in NUMBERS.items()}
    if numbers["tuning_seed"] == numbers["seed"]:
        raise ConfigError(
            f"tuning_seed={numbers['tuning_seed']} is the scoring seed; nothing may be chosen on "
            "the runs that count, so give another"
        )
    decades = given["decades"]
    if isinstance(decades, bool) or not isinstance(decades, int | float) or not 0 < decades <= 12:
        raise ConfigError(f"decades={decades!r} must be a number above 0, at most 12")
    clock = given.get("clock", {})
    problems = tuple(_problem(one, clock, folder) for one in given["problem"])
    methods = [read_method(one, where=f"method {i + 1}") for i, one in enumerate(given["method"])]
    for what, names in (("problems", [p.name for p in problems]),
                        ("methods", [m.name for m in methods])):  # fmt: skip
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"two {what} are called {twice[0]!r}; give them names")
    reference = given["reference"]
    names = [method.name for method in methods]
    if reference not in names:
        raise ConfigError(f"reference={reference!r} is no method{nearest(reference, names)}")
    methods.sort(key=lambda method: method.name != reference)
    return Protocol(
        str(given.get("name", "leaderboard")), numbers, float(decades), reference, problems,
        tuple(methods), _factorial(given.get("factorial", {})),
    )  # fmt: skip


def _problem(given: Any, clock: Any, folder: Path) -> BoardProblem:
    needed = ("name", "num_active", "source")
    check_keys(given, ("clock", "tuned", *needed), where="[[problem]]", needed=needed)
    where = f"problem {given['name']!r}: "
    try:
        return BoardProblem(
            str(given["name"]), read_problem(given["source"], folder),
            whole_number(given, "num_active", 1, where),
            read_value(given.get("clock", clock), Clock, where="clock"),
            read_value(given.get("tuned", True), bool, where="tuned"),
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(str(error) if where in str(error) else f"{where}{error}") from error


def _factorial(given: Any) -> dict[str, Any]:
    if not given:
        return {}
    needed = (*PARTS, *FACTORIAL_NUMBERS)
    check_keys(given, needed, where="[factorial]", needed=needed)
    for key, known in PARTS.items():
        for name in given[key]:
            check_known(name, known, where=f"[factorial]: {key}")
    numbers = {k: whole_number(given, k, n, "[factorial]: ") for k, n in FACTORIAL_NUMBERS.items()}
    return {key: list(given[key]) for key in PARTS} | numbers


def read_protocol(
    path: Path | None = None,
    *,
    size: str = "",
    methods: Sequence[str] = (),
    problems: Sequence[str] = (),
    plugins: Sequence[str] = (),
    factorial: bool = True,
    **numbers: int | None,
) -> Protocol:
    """The leaderboard of a file, or the one that comes with isfed, or a part of it.

    Args:
        path: the file; unless given, leaderboard.toml of the package.
        size: the table [size.NAME] of the file replaces what it names; "" is the full size.
        methods: which methods take part; all unless given. The reference always does.
        problems: which problems; all unless given.
        plugins: files or entry points with methods of the user's own.
        factorial: whether the combinations of parts run.
        numbers: replace numbers of the file, such as `rounds`; None leaves one alone.
    """
    tables = study_tables("leaderboard") if path is None else load_toml(path)
    folder = Path() if path is None else path.parent
    sizes = tables.pop("size", {})
    if size:
        check_known(size, sizes, where="size")
    small = dict(sizes.get(size, {}))
    # What is asked for by name is not cut down to what a smaller size has.
    methods = methods or small.pop("methods", ())
    problems = problems or small.pop("problems", ())
    tables |= {key: value for key, value in small.items() if key not in ("methods", "problems")}
    tables["method"] = _chosen(tables["method"], methods, "method", tables["reference"])
    tables["problem"] = _chosen(tables["problem"], problems, "problem")
    tables["method"] += plugin_methods(plugins)
    given = {key: value for key, value in numbers.items() if value is not None}
    if "rounds" in given and "tuning_rounds" not in given:
        given["tuning_rounds"] = min(given["rounds"], tables["tuning_rounds"])
    tables |= given
    if not factorial:
        tables.pop("factorial", None)
    return make_protocol(tables, folder=folder)


def _chosen(tables: Any, names: Sequence[str], what: str, always: str = "") -> list[Any]:
    """Those of the tables that are named, or all."""
    known = [table.get("name", table.get("kind", "")) for table in tables]
    for name in names:
        if name not in known:
            raise ConfigError(f"{what} {name!r} is not known{nearest(name, known)}")
    wanted = {*names, always} if names else set(known)
    return [table for name, table in zip(known, tables, strict=True) if name in wanted]
