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
from isfed.studies import dataset_config, network_config  # noqa: F401  (they name data sets)
from isfed.studies.config_schema import ConfigError, check_keys, read_value, write_value
from isfed.studies.executors import Executor
from isfed.studies.held_out_error import Kept, qualities_on, split
from isfed.studies.name_registry import read_algorithm
from isfed.studies.problem_sources import ProblemSource, RegressionSource, read_problem
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
    kind: ClassVar[str] = "experiment"

    def check(self) -> None:
        """Refuse an algorithm that cannot run on the problem."""
        self.checked_problem(self.algorithms)

    def outcome(self, executor: Executor) -> Outcome:
        """Run every algorithm; models that predict classes are tested."""
        results = self.run_methods(executor, self.algorithms)
        tested = self._tested(executor, results)
        return self.summarised(results, **({"held_out": tested} if tested else {}))

    def _tested(self, executor: Executor, results: Mapping[str, Finished]) -> dict[str, Any]:
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
                    len(self.algorithms), source=Kept(self.source, self.seed, agents=False),
                    algorithm=algorithm, rounds=self.rounds, seed=self.seed, engine=self.engine,
                    clock=self.clock, details=False,
                )
                for name, algorithm in self.algorithms.items()
                if not results[name].diverged
            }  # fmt: skip
            found = executor.run(groups, "without what is held out", warn=False)
        return {
            name: qualities_on(problem.loss, sets, result.history.params)
            for name, result in found.items()
            if not result.diverged
        }


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
    check_keys(given, (*DEFAULTS, "clock", "problem", "algorithm"), where="the file")
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
    source = read_problem(given.get("problem", {}), folder)
    algorithms, tables = _algorithms(given.get("algorithm", []), source)
    timed = {} if clock is None else {"clock": write_value(clock)}
    resolved = {**top, **timed, "problem": source.describe(), "algorithm": tables}
    return Experiment(source=source, algorithms=algorithms, resolved=resolved, clock=clock, **top)


def _algorithms(given: Any, source: ProblemSource) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The algorithms by name, and the tables that make them again."""
    if not isinstance(given, list) or not given:
        raise ConfigError("the file needs at least one [[algorithm]]")
    algorithms: dict[str, Any] = {}
    tables = []
    for index, table in enumerate(given):
        name, algorithm, again = read_algorithm(table, where=f"algorithm {index + 1}")
        if name in algorithms:
            raise ConfigError(f"two algorithms are called {name!r}; give them names")
        if isinstance(source, RegressionSource):  # of others it is known when they are loaded
            try:
                check_active(getattr(algorithm, "num_active", 1), source.recipe.num_agents)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error
        algorithms[name] = algorithm
        tables.append(again)
    return algorithms, tables


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
