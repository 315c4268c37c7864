"""An experiment as a TOML file; here, and nowhere else, names become objects."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal

from isfed.base.argument_checks import check_active
from isfed.base.import_by_name import allowing
from isfed.federation.virtual_clock import Clock
from isfed.problems.losses import Logistic, Softmax
from isfed.sampling.policies import Refresh
from isfed.studies import dataset_config, network_config  # noqa: F401  (they name data sets)
from isfed.studies.config_schema import ConfigError, check_keys, read_value, write_value
from isfed.studies.executors import Executor
from isfed.studies.held_out_error import Kept, qualities_on, split
from isfed.studies.name_registry import lacks_step_size, read_algorithm
from isfed.studies.problem_sources import ProblemSource, RegressionSource, read_problem
from isfed.studies.results_reader import results_of
from isfed.studies.step_grid import StepGrid
from isfed.studies.study_engine import Outcome, Study
from isfed.studies.test_measures import ErrorRates
from isfed.studies.work_cells import Finished, problem_of


def _whole(given: Mapping[str, Any], key: str, *, least: int) -> int:
    value = given[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{key}={value!r} must be a whole number >= {least}")
    return value


MOST_TESTED = 10  # repetitions that are trained again without the rows held out
Engine = Literal["auto", "kernel", "agents", "objects"]


@dataclass(frozen=True, eq=False)
class Experiment(Study):
    """A problem, some algorithms to compare on it, and how long to run them.

    Args:
        name: the name of the experiment and of its results folder.
        source: where the problem comes from.
        algorithms: by the name that tables and figures use.
        rounds: the number of rounds of every repetition.
        repetitions: the number of independent runs of every algorithm.
        seed: the seed of all random draws.
        resolved: the tables of the TOML file that makes this experiment again, with every default.
        engine: what runs the rounds; "auto" chooses the fastest engine that can run an algorithm.
        clock: how fast the agents are and how often they do not answer; None counts no virtual
            time.
        step_sizes: what is tried for algorithms that give no step size; None if all give one.
        tuned: the names of those algorithms.
    """

    name: str
    source: ProblemSource
    algorithms: dict[str, Any]
    rounds: int
    repetitions: int
    seed: int
    resolved: dict[str, Any]
    engine: Engine = "auto"
    clock: Clock | None = None
    step_sizes: StepGrid | None = None
    tuned: tuple[str, ...] = ()
    kind: ClassVar[str] = "experiment"

    def check(self) -> None:
        """Refuse an algorithm that cannot run on the problem."""
        problem = self.checked_problem(self.algorithms)
        if self.step_sizes is not None:
            self.step_sizes.check(problem, source=self.source, seed=self.seed)

    def outcome(self, executor: Executor) -> Outcome:
        """Choose step sizes, run every algorithm; models that predict classes are tested."""
        methods, more = self.algorithms, {}
        if self.step_sizes is not None:
            best, searches = self.step_sizes.choose(
                executor, {name: methods[name] for name in self.tuned}, source=self.source,
                rounds=self.rounds, seed=self.seed,
            )  # fmt: skip
            methods = methods | best
            more["step_sizes"] = {name: found.as_dict() for name, found in searches.items()}
        results = self._run_slow_last(executor, methods)
        tested = self._tested(executor, methods, results)
        return self.summarised(results, **more, **({"held_out": tested} if tested else {}))

    def _run_slow_last(self, executor: Executor, methods: dict[str, Any]) -> dict[str, Finished]:
        """Run every algorithm, with a preview before those that read all data in every round."""
        slow = {name: method for name, method in methods.items() if _reads_all(method)}
        quick = {name: method for name, method in methods.items() if name not in slow}
        if executor.preview is None or not (slow and quick):
            return self.run_methods(executor, methods)
        results = self.run_methods(executor, quick)
        tables, summary, times = self.summarised(results)
        summary |= {"kind": self.kind, "digest": self.digest, "made_with": {}}  # nothing is written
        place = executor.store.folder or Path()
        executor.preview(
            results_of(place, self.resolved, summary=summary, tables=tables, times=times)
        )
        results |= self.run_methods(executor, slow)
        return {name: results[name] for name in methods}

    def _tested(
        self, executor: Executor, methods: Mapping[str, Any], results: Mapping[str, Finished]
    ) -> dict[str, Any]:
        """Loss and error on the test rows; on held-out rows, after a second training, if none."""
        problem, measure = problem_of(self.source)
        if not isinstance(problem.loss, Logistic | Softmax):
            return {}
        if isinstance(measure, ErrorRates):
            sets, found = {"test": measure.rows}, results
        else:
            sets = {"rows": split(problem, self.seed, agents=False).rows}
            if measure is not None or not len(sets["rows"][1]):
                return {}
            groups = {
                name: executor.cells(
                    name, f"held out {name}", min(self.repetitions, MOST_TESTED),
                    len(methods), source=Kept(self.source, self.seed, agents=False),
                    algorithm=algorithm, rounds=self.rounds, seed=self.seed, engine=self.engine,
                    clock=self.clock, details=False,
                )
                for name, algorithm in methods.items()
                if not results[name].diverged
            }  # fmt: skip
            found = executor.run(groups, "without what is held out", warn=False)
        return {
            name: qualities_on(problem.loss, sets, result.history.params)
            for name, result in found.items()
            if not result.diverged
        }


def _reads_all(method: Any) -> bool:
    """Whether a policy of the method computes all scores anew in every round."""
    sides = (getattr(method, side, None) for side in ("agents", "examples"))
    return any(getattr(policy, "refresh", None) == Refresh.ALL for policy in sides)


DEFAULTS = {"name": "experiment", "rounds": 3000, "repetitions": 100, "seed": 0, "engine": "auto"}


def make_experiment(
    given: Mapping[str, Any],
    *,
    folder: Path = Path(),
    allow_imports: bool = False,
    trust: str | Path | Sequence[str | Path] = (),
) -> Experiment:
    """An experiment from the tables of a TOML file; raises ConfigError with one line.

    Args:
        given: the tables.
        folder: what paths in the tables are relative to.
        allow_imports: whether the tables may name classes of any module, as "module:Class". Their
            modules are then run: allow it only for tables that you trust.
        trust: one or several folders whose modules the tables may name, and no others.
    """
    try:
        with allowing(anything=allow_imports, folders=trust):
            return _make(given, folder)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _make(given: Mapping[str, Any], folder: Path) -> Experiment:
    tables = ("clock", "step_sizes", "problem", "algorithm")
    check_keys(given, (*DEFAULTS, *tables), where="the file")
    given = DEFAULTS | dict(given)
    name = given["name"]
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
        raise ConfigError(f"name={name!r} must be a word that can name a folder")
    top: dict[str, Any] = {
        "name": name,
        "rounds": _whole(given, "rounds", least=1),
        "repetitions": _whole(given, "repetitions", least=1),
        "seed": _whole(given, "seed", least=0),
        "engine": read_value(given["engine"], Engine, where="engine", readers={}),
    }
    clock = None
    if "clock" in given:
        clock = read_value(given["clock"], Clock, where="clock", readers={})
        if top["engine"] == "kernel":
            raise ConfigError(
                "engine='kernel' does not count virtual time; leave out engine or [clock]"
            )
    grid = None
    if "step_sizes" in given:
        grid = read_value(given["step_sizes"], StepGrid, where="step_sizes", readers={})
    source = read_problem(given.get("problem", {}), folder)
    algorithms, tables, tuned = _algorithms(given.get("algorithm", []), source, grid)
    named = {"clock": clock, "step_sizes": grid}
    more = {name: write_value(value) for name, value in named.items() if value is not None}
    resolved = {**top, **more, "problem": source.describe(), "algorithm": tables}
    return Experiment(
        source=source, algorithms=algorithms, resolved=resolved, tuned=tuned, **named, **top
    )


def _algorithms(
    given: Any, source: ProblemSource, grid: StepGrid | None
) -> tuple[dict[str, Any], list[dict[str, Any]], tuple[str, ...]]:
    """The algorithms by name, the tables that make them again, and which of them are tuned."""
    if not isinstance(given, list) or not given:
        raise ConfigError("the file needs at least one [[algorithm]]")
    algorithms: dict[str, Any] = {}
    tables = []
    tuned = []
    for index, table in enumerate(given):
        first = {} if grid is None or not lacks_step_size(table) else {"step_size": grid.grid[0]}
        given_or_first = table | first if first else table
        name, algorithm, again = read_algorithm(given_or_first, where=f"algorithm {index + 1}")
        if first:
            tuned.append(name)
            del again["step_size"]
        if name in algorithms:
            raise ConfigError(f"two algorithms are called {name!r}; give them names")
        if isinstance(source, RegressionSource):  # of others it is known when they are loaded
            try:
                check_active(getattr(algorithm, "num_active", 1), source.recipe.num_agents)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error
        algorithms[name] = algorithm
        tables.append(again)
    if grid is not None and not tuned:
        raise ConfigError(
            "[step_sizes] has nothing to tune: every [[algorithm]] gives its step_size; leave out "
            "that key where the best of the grid is wanted"
        )
    return algorithms, tables, tuple(tuned)


def read_experiment(
    path: Path,
    *,
    allow_imports: bool = False,
    trust: str | Path | Sequence[str | Path] = (),
    **overrides: Any,
) -> Experiment:
    """An experiment from a TOML file; raises ConfigError with one line.

    Args:
        path: the file.
        allow_imports, trust: which modules the file may name, see `make_experiment`; none by
            default.
        overrides: replace keys at the top of the file, such as `rounds`; None leaves a key alone.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file: {error.reason}") from error
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    given.setdefault("name", path.stem)
    given.update({key: value for key, value in overrides.items() if value is not None})
    try:
        return make_experiment(given, folder=path.parent, allow_imports=allow_imports, trust=trust)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def paper_regression(**overrides: Any) -> Experiment:
    """The paper's regression (section V-A), which regression.toml describes.

    Args:
        overrides: replace keys at the top of the file, such as `rounds`; None leaves a key alone.
    """
    with resources.as_file(resources.files("isfed.studies") / "regression.toml") as path:
        return read_experiment(path, **overrides)
