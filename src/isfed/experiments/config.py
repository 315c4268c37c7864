"""An experiment as a TOML file; here, and nowhere else, names become objects."""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from isfed.algorithms import DynamicFedAvg, FedAvg, ISFedAvg
from isfed.problems import PRESETS, Problem, Regression
from isfed.sampling.designs import (
    Design,
    Deville,
    HartleyRao,
    Poisson,
    Sampford,
    Systematic,
    WithReplacement,
)
from isfed.sampling.policies import Current, Memory, Oracle, Policy, Running, Score, Uniform
from isfed.simulate import Measure

DESIGNS: dict[str, Callable[[], Design]] = {
    "systematic": Systematic,
    "hartley-rao": HartleyRao,
    "deville": Deville,
    "sampford": Sampford,
    "poisson": Poisson,
    "with-replacement": WithReplacement,
}
POLICIES: dict[str, Callable[..., Policy]] = {
    "uniform": Uniform,
    "oracle": Oracle,
    "current": Current,
    "running": Running,
    "memory": Memory,
}
POLICY_KEYS = {
    "uniform": (),
    "oracle": ("floor",),
    "current": ("floor",),
    "running": ("floor",),
    "memory": ("floor", "score", "rate"),
}
SCORES = {"averaged-bound": Score.AVERAGED_BOUND, "second-moment": Score.SECOND_MOMENT}
ALGORITHM_KEYS = {
    "FedAvg": ("step_size", "num_active", "divide_by_steps"),
    "DynamicFedAvg": ("step_size", "num_active", "drift"),
    "ISFedAvg": (
        "step_size",
        "num_active",
        "agents",
        "examples",
        "agent_design",
        "example_design",
        "divide_by_steps",
        "drift",
    ),
}
RECIPE_KEYS = tuple(field.name for field in fields(Regression) if field.name != "name")


class ConfigError(ValueError):
    """Something in a configuration that cannot be used, said in one line."""


def _nearest(word: str, known: Any) -> str:
    close = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(map(str, known))}"


def _check_keys(given: Mapping[str, Any], known: Any, *, where: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table of keys, got {given!r}")
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in {where}{_nearest(key, known)}")


def _look_up(name: Any, known: Mapping[str, Any], *, where: str) -> Any:
    if not isinstance(name, str) or name not in known:
        raise ConfigError(f"{where}={name!r} is not known{_nearest(name, known)}")
    return known[name]


def _whole(given: Mapping[str, Any], key: str, *, least: int) -> int:
    value = given[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{key}={value!r} must be a whole number >= {least}")
    return value


def _policy(given: Any, *, where: str) -> tuple[Policy, dict[str, Any]]:
    """A policy from its name, or from a table {policy = name, floor = ...}."""
    table = {"policy": given} if isinstance(given, str) else given
    _check_keys(table, ("policy", "floor", "score", "rate"), where=where)
    if "policy" not in table:
        raise ConfigError(f"{where} needs a key 'policy'")
    name = table["policy"]
    make = _look_up(name, POLICIES, where=f"{where}.policy")
    options = {key: value for key, value in table.items() if key != "policy"}
    _check_keys(options, POLICY_KEYS[name], where=f"{where} ({name})")
    if "score" in options:
        options["score"] = _look_up(options["score"], SCORES, where=f"{where}.score")
    try:
        policy = make(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return policy, _policy_table(policy)


def _policy_table(policy: Policy) -> dict[str, Any]:
    """The table that makes a policy again."""
    table: dict[str, Any] = {"policy": policy.name}
    for key in POLICY_KEYS[policy.name]:
        value = getattr(policy, key)
        table[key] = next(n for n, s in SCORES.items() if s == value) if key == "score" else value
    return table


def algorithm_table(name: str, algorithm: ISFedAvg) -> dict[str, Any]:
    """The [[algorithm]] that makes an algorithm again."""
    designs = {make: word for word, make in DESIGNS.items()}
    return {
        "name": name,
        "kind": "ISFedAvg",
        "step_size": algorithm.step_size,
        "num_active": algorithm.num_active,
        "agents": _policy_table(algorithm.agents),
        "examples": _policy_table(algorithm.examples),
        "agent_design": designs[type(algorithm.agent_design)],
        "example_design": designs[type(algorithm.example_design)],
        "divide_by_steps": algorithm.divide_by_steps,
        "drift": algorithm.drift,
    }


def _algorithm(given: Mapping[str, Any], *, where: str) -> tuple[ISFedAvg, dict[str, Any]]:
    """An algorithm, and the table that would make it again."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table of keys, got {given!r}")
    kind = given.get("kind", "ISFedAvg")
    keys = _look_up(kind, ALGORITHM_KEYS, where=f"{where}.kind")
    _check_keys(given, ("name", "kind", *keys), where=where)
    options = {key: given[key] for key in keys if key in given}
    for key in ("step_size", "num_active"):
        if key not in options:
            raise ConfigError(f"{where} needs a key {key!r}")
    resolved: dict[str, Any] = {"kind": kind, **options}
    for key in ("agents", "examples"):
        if key in keys:
            options[key], resolved[key] = _policy(
                options.get(key, "memory"), where=f"{where}.{key}"
            )
    for key in ("agent_design", "example_design"):
        if key in keys:
            resolved[key] = options.get(key, "deville")
            options[key] = _look_up(resolved[key], DESIGNS, where=f"{where}.{key}")()
    make: Any = {"FedAvg": FedAvg, "DynamicFedAvg": DynamicFedAvg, "ISFedAvg": ISFedAvg}[kind]
    try:
        algorithm = make(**options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
    name = given.get("name", algorithm.name)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}.name={name!r} must be a text")
    for key in ("divide_by_steps", "drift"):
        if key in keys:
            resolved[key] = getattr(algorithm, key)
    return algorithm, {"name": name, **resolved}


def _recipe(given: Mapping[str, Any]) -> tuple[Regression, int, dict[str, Any]]:
    _check_keys(given, ("preset", "seed", *RECIPE_KEYS), where="[problem]")
    preset = _look_up(given.get("preset", "paper"), PRESETS, where="problem.preset")
    changes: dict[str, Any] = {key: given[key] for key in RECIPE_KEYS if key in given}
    changes = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
    try:
        recipe = preset.replace(**changes)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[problem]: {error}") from error
    seed = _whole({"seed": given.get("seed", 0)}, "seed", least=0)
    values = {key: getattr(recipe, key) for key in RECIPE_KEYS}
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return recipe, seed, {"preset": preset.name, "seed": seed, **values}


def fingerprint(tables: Mapping[str, Any]) -> str:
    """Sixteen characters that stand for a configuration."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


class ProblemSource(Protocol):
    """Where the problem of an experiment comes from."""

    def make(self) -> Problem:
        """Make or load the problem."""
        ...

    def measure(self, problem: Problem) -> Measure | None:
        """What to measure along the way beside the msd."""
        ...


@dataclass(frozen=True)
class RegressionSource:
    """A generated regression."""

    recipe: Regression
    seed: int

    def make(self) -> Problem:
        """Generate the problem."""
        return self.recipe.make(seed=self.seed)

    def measure(self, problem: Problem) -> Measure | None:
        """Nothing beside the msd."""
        return None


@dataclass(frozen=True, eq=False)
class Experiment:
    """A problem, some algorithms to compare on it, and how long to run them."""

    name: str
    source: ProblemSource
    algorithms: dict[str, ISFedAvg]  # by the name that tables and figures use
    rounds: int
    repetitions: int
    seed: int
    resolved: dict[str, Any]  # the TOML that makes this experiment again, with every default

    @property
    def digest(self) -> str:
        """A fingerprint: two experiments with the same one give the same results."""
        return fingerprint(self.resolved)

    def to_toml(self) -> str:
        """The resolved configuration."""
        return tomli_w.dumps(self.resolved)


def make_experiment(given: Mapping[str, Any]) -> Experiment:
    """An experiment from the tables of a TOML file; raises ConfigError with one line."""
    known = ("name", "rounds", "repetitions", "seed", "problem", "algorithm")
    _check_keys(given, known, where="the file")
    given = {"name": "experiment", "rounds": 3000, "repetitions": 100, "seed": 0, **given}
    name = given["name"]
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
        raise ConfigError(f"name={name!r} must be a word that can name a folder")
    rounds = _whole(given, "rounds", least=1)
    repetitions = _whole(given, "repetitions", least=1)
    seed = _whole(given, "seed", least=0)
    recipe, data_seed, problem = _recipe(given.get("problem", {}))
    tables = given.get("algorithm", [])
    if not isinstance(tables, list) or not tables:
        raise ConfigError("the file needs at least one [[algorithm]]")
    algorithms: dict[str, ISFedAvg] = {}
    resolved = []
    for index, table in enumerate(tables):
        algorithm, again = _algorithm(table, where=f"algorithm {index + 1}")
        if again["name"] in algorithms:
            raise ConfigError(f"two algorithms are called {again['name']!r}; give them names")
        if algorithm.num_active > recipe.num_agents:
            raise ConfigError(
                f"{again['name']}: num_active={algorithm.num_active} exceeds "
                f"num_agents={recipe.num_agents}"
            )
        algorithms[again["name"]] = algorithm
        resolved.append(again)
    every = {
        "name": name,
        "rounds": rounds,
        "repetitions": repetitions,
        "seed": seed,
        "problem": problem,
        "algorithm": resolved,
    }
    source = RegressionSource(recipe, data_seed)
    return Experiment(name, source, algorithms, rounds, repetitions, seed, every)


def read_experiment(path: Path, **overrides: Any) -> Experiment:
    """An experiment from a TOML file; `overrides` replace top-level keys."""
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
        return make_experiment(given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def paper_regression(**overrides: Any) -> Experiment:
    """The paper's regression (section V-A), which regression.toml describes."""
    with resources.as_file(resources.files("isfed.experiments") / "regression.toml") as path:
        return read_experiment(path, **overrides)
