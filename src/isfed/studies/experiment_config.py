"""An experiment as a TOML file; here, and nowhere else, names become objects."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from isfed.base.argument_checks import check_active
from isfed.base.import_by_name import allowing
from isfed.federation.virtual_clock import Clock
from isfed.studies import dataset_config, neural_network_config  # noqa: F401  (they name data sets)
from isfed.studies.config_schema import (
    ConfigError,
    arguments,
    check_keys,
    check_known,
    nearest,
    read_value,
    whole_number,
    write_table,
)
from isfed.studies.experiment import Experiment, StudyTask
from isfed.studies.name_registry import lacks_step_size, read_algorithm, with_values
from isfed.studies.problem_sources import RegressionSource, read_problem
from isfed.studies.step_grid import StepGrid
from isfed.studies.study_summaries import SUMMARIES

DEFAULTS = {"name": "experiment", "rounds": 3000, "repetitions": 100, "seed": 0, "engine": "auto"}
LEAST = {"rounds": 1, "repetitions": 1, "seed": 0}
STUDY = ("kind", "looks", "details", "seeds")  # of the files that come with isfed
OPTIONS = ("title", "paper", "rest")  # of what is made of the results
# Of all problems; a problem may have its own.
SHARED = {
    "clock": Clock | None, "step_sizes": StepGrid | None, "share": float, "level": str,
    "start": arguments(StudyTask)["start"].hint,
}  # fmt: skip
TABLES = (*SHARED, "problem", "algorithm", "values")
# Keys of a problem beside those of its source.
OF_TASK = (
    "name", "source", "rounds", "repetitions", "values", "own", "without", "over", "algorithm",
    *SHARED,
)  # fmt: skip
FIELDS = arguments(Experiment)


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
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _make(given: Mapping[str, Any], folder: Path) -> Experiment:
    check_keys(given, (*DEFAULTS, *STUDY, *TABLES, *OPTIONS), where="the file")
    given = DEFAULTS | dict(given)
    name = given["name"]
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
        raise ConfigError(f"name={name!r} must be a word that can name a folder")
    kind = given.get("kind", FIELDS["kind"].default)
    check_known(kind, (FIELDS["kind"].default, *SUMMARIES), where="kind")
    top: dict[str, Any] = {
        "name": name, **{key: whole_number(given, key, least) for key, least in LEAST.items()},
        "engine": read_value(given["engine"], FIELDS["engine"].hint, where="engine"),
    }  # fmt: skip
    study = {k: read_value(given[k], FIELDS[k].hint, where=k) for k in STUDY if k in given}
    tasks, tables = _tasks(given, folder)
    if top["engine"] == "kernel" and any(task.clock is not None for task in tasks):
        raise ConfigError(
            "engine='kernel' does not count virtual time; leave out engine or [clock]"
        )
    options = {key: given[key] for key in OPTIONS if key in given}
    kept = {key: value for key, value in study.items() if value != FIELDS[key].default}
    resolved = {**top, **write_table(kept), **options, **tables}
    run = {key: top[key] for key in ("name", "seed", "engine")}
    return Experiment(tasks=tasks, resolved=resolved, options=options, **study, **run)


def _tasks(given: Mapping[str, Any], folder: Path) -> tuple[tuple[StudyTask, ...], dict[str, Any]]:
    """What runs on every problem, and the tables that say so with every default."""
    problems = given.get("problem", {})
    several = isinstance(problems, list)
    tasks, written = [], []
    tables: list[dict[str, Any]] = []
    shared = _shared(given)
    for table in problems if several else [problems]:
        check_keys(table, where="[problem]")
        more = {key: value for key, value in table.items() if key in OF_TASK}
        # A problem may replace some keys of a table of the file.
        own = _shared({k: merged_tables(given.get(k), more[k]) for k in SHARED if k in more})
        of_task = shared | own
        grid = of_task.get("step_sizes")
        inline = {key: value for key, value in table.items() if key not in OF_TASK}
        source = {**table.get("source", {}), **inline}
        counts = {key: whole_number({**given, **more}, key, 1) for key in ("rounds", "repetitions")}
        described: dict[str, Any] = {}
        for title, place, seeded, keys in _places(more, several):
            made = read_problem(source | keys, folder)
            if not described:
                described = made.describe()
                listed = _filled(given, more, made, counts["rounds"])
                algorithms, tables, tuned = _algorithms(listed, made, grid)
            tasks.append(
                StudyTask(
                    title, made, algorithms, **counts, place=place, seeded=seeded, tuned=tuned,
                    **of_task,
                )
            )  # fmt: skip
        if several:
            named = {"name": more.get("name", ""), "source": described}
            described = named | counts | {"algorithm": tables} | write_table(own)
        written.append(described | {key: more[key] for key in ("name", "over") if key in more})
    if any(task.step_sizes for task in tasks) and not any(task.tuned for task in tasks):
        raise ConfigError(
            "[step_sizes] has nothing to tune: every [[algorithm]] gives its step_size; leave out "
            "that key where the best of the grid is wanted"
        )
    if several:
        return tuple(tasks), {**write_table(shared), "problem": written}
    return tuple(tasks), {**write_table(shared), "problem": written[0], "algorithm": tables}


def _shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of a file or of a problem: the clock, the step sizes, and what part of a run counts."""
    return {
        key: read_value(given[key], hint, where=key) for key, hint in SHARED.items() if key in given
    }


def _places(
    more: Mapping[str, Any], several: bool
) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
    """Title, place, seed in words and keys of every problem that a table stands for."""
    title, over = more.get("name", ""), more.get("over")
    if over is None:
        yield f"{title}: " if several else "", {}, "", {}
        return
    check_keys(over, where="[problem] over")
    lists = [values if isinstance(values, list) else [values] for values in over.values()]
    for values in itertools.product(*lists):
        keys = dict(zip(over, values, strict=True))
        # Seeds that the name does not tell apart are repetitions of one problem.
        place = {key: value for key, value in keys.items() if key != "seed"}
        seeded = f", data {keys['seed']}" if "seed" in keys and "{seed" not in title else ""
        shown = title or ", ".join(f"{key} {{{key}}}" for key in place)
        yield f"{shown.format(**keys)}, ", place, seeded, keys


def _filled(
    given: Mapping[str, Any], more: Mapping[str, Any], source: Any, rounds: int
) -> list[Any]:
    """The [[algorithm]] tables of a problem, with the values that it has for all and for some."""
    tables = more.get("algorithm", given.get("algorithm", []))
    if not isinstance(tables, list) or not tables:
        raise ConfigError("the file needs at least one [[algorithm]]")
    values = {**given.get("values", {}), **more.get("values", {})}
    own, without = more.get("own", {}), more.get("without", ())
    names = [table.get("name") for table in tables if isinstance(table, Mapping)]
    for name in (*own, *without):
        if name not in names:
            raise ConfigError(f"[problem]: no algorithm is called {name!r}{nearest(name, names)}")
    if not (values or own or without):
        return tables
    filled = []
    for table in tables:
        if isinstance(table, Mapping) and table.get("name") not in without:
            table = with_values(table, values) | own.get(table.get("name"), {})
            made = {key: _computed(value, source, rounds) for key, value in table.items()}
            filled.append(made)
    return filled


def _computed(value: Any, source: Any, rounds: int) -> Any:
    """What {per_round = x} and {ramp = n} stand for: x times the rounds; 1 to n over the agents."""
    if isinstance(value, Mapping) and value.keys() == {"per_round"}:
        return value["per_round"] * rounds
    if isinstance(value, Mapping) and value.keys() == {"ramp"}:
        count = source.make().num_agents
        return [1 + agent * value["ramp"] // count for agent in range(count)]
    return value


def _algorithms(
    given: Sequence[Any], source: Any, grid: StepGrid | None
) -> tuple[dict[str, Any], list[dict[str, Any]], tuple[str, ...]]:
    """The algorithms by name, the tables that make them again, and which of them are tuned."""
    algorithms: dict[str, Any] = {}
    tables, tuned = [], []
    for index, table in enumerate(given):
        first = {} if grid is None or not lacks_step_size(table) else {"step_size": grid.grid[0]}
        given_or_first = table | first if first else table
        name, algorithm, again = read_algorithm(given_or_first, where=f"algorithm {index + 1}")
        if first:
            del again["step_size"]
        if first or (grid is not None and grid.again):
            tuned.append(name)
        if name in algorithms:
            raise ConfigError(f"two algorithms are called {name!r}; give them names")
        if isinstance(source, RegressionSource):  # of others it is known when they are loaded
            try:
                check_active(getattr(algorithm, "num_active", 1), source.recipe.num_agents)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error
        algorithms[name] = algorithm
        tables.append(again)
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
    given = load_toml(path)
    given.setdefault("name", path.stem)
    given.update({key: value for key, value in overrides.items() if value is not None})
    try:
        return make_experiment(given, folder=path.parent, allow_imports=allow_imports, trust=trust)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def load_toml(path: Path) -> dict[str, Any]:
    """The tables of a file; a ConfigError says why it cannot be read."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file: {error.reason}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def study_tables(name: str) -> dict[str, Any]:
    """The tables of a study that comes with isfed, such as regression or systems."""
    with resources.as_file(resources.files("isfed.studies") / f"{name}.toml") as path:
        return load_toml(path)


def study_settings(name: str) -> list[str]:
    """The settings of a study that comes with isfed, each with a results folder of its own."""
    return list(study_tables(name).get("setting", {}))


def read_study(
    name: str,
    *,
    setting: str = "",
    size: str = "",
    changes: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Experiment:
    """A study that comes with isfed.

    Args:
        name: of its file.
        setting: which of the tables [setting.NAME] replaces what it names.
        size: which of the tables [size.NAME], and of those in the setting, does so after it.
        changes: more tables that do so, as `{"problem": {"data_dir": "data"}}`.
        overrides: replace keys at the top, such as `rounds`; None leaves a key alone.
    """
    given = study_tables(name)
    settings, sizes = given.pop("setting", {}), given.pop("size", {})
    for word, known, what in ((setting, settings, "setting"), (size, sizes, "size")):
        if word:
            check_known(word, known, where=what)
    chosen = dict(settings.get(setting, {}))
    own_sizes = chosen.pop("size", {})
    for part in (chosen, sizes.get(size, {}), own_sizes.get(size, {}), changes or {}):
        given = merged_tables(given, part)
    numbers = {key: value for key, value in overrides.items() if value is not None}
    steps = given.get("step_sizes", {})
    if "rounds" in numbers and "rounds" in steps:
        steps["rounds"] = min(numbers["rounds"], steps["rounds"])
    return make_experiment(given | numbers)


def merged_tables(given: Any, part: Any) -> Any:
    """Tables in which others replace what they name; those of a list have a name."""
    if isinstance(given, list) and isinstance(part, Mapping):
        return [merged_tables(one, part.get(one.get("name"), {})) for one in given]
    if not (isinstance(given, Mapping) and isinstance(part, Mapping)):
        return part
    return {**given, **{k: merged_tables(given.get(k), value) for k, value in part.items()}}
