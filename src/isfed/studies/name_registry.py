"""What has a name in a configuration: methods, policies, designs, losses and data sets.

    register("FedProx", FedProx)

and `kind = "FedProx"` runs it; the keys of its [[algorithm]] are the fields of the dataclass, or
the parameters of the function, with their types and defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import isfed
from isfed.base.import_by_name import check_allowed, import_named, missing_members
from isfed.methods.by_score import ByScore
from isfed.methods.catalogue import CATALOGUE
from isfed.methods.cooperative_sgd import Elastic, Graph, Mixing, Ring
from isfed.methods.estimators import HorvitzThompson, PlainMean
from isfed.methods.federated import Estimator, Federated, Sampler
from isfed.methods.fedvarp import RememberedMean
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import Algorithm
from isfed.methods.method_wrappers import Served
from isfed.methods.passes_over_agents import Passes
from isfed.methods.servers import (
    Add,
    Average,
    FedAdagrad,
    FedAdam,
    FedYogi,
    LookAhead,
    Server,
    ServerMomentum,
)
from isfed.methods.stratified_passes import StratifiedPasses
from isfed.methods.uniform_samplers import UniformCohort
from isfed.problems import Huber, LeastSquares, Logistic, Softmax
from isfed.problems.losses import LinearLoss, Loss
from isfed.sampling.designs import (
    Design,
    Deville,
    HartleyRao,
    LocalPivotal,
    Poisson,
    Sampford,
    Spread,
    Systematic,
    WithReplacement,
)
from isfed.sampling.policies import Current, Memory, Oracle, Policy, Running, Uniform
from isfed.studies.config_schema import (
    Argument,
    ConfigError,
    arguments,
    check_keys,
    check_known,
    make,
    read_arguments,
    write_value,
)

BY = "by"  # the key of an option that is called as the word of its registry


class Registry(Mapping[str, Callable]):
    """Functions that make objects, by name.

    Args:
        word: the key of a file that names one.
        protocol: what a class that a file names as "module:Class" has to have before it is called.
        known: by name.
    """

    def __init__(self, word: str, protocol: Any, **known: Callable) -> None:
        self.word = word
        self.protocol = protocol
        self._known: dict[str, Callable] = {}
        for name, factory in known.items():
            self.add(name.replace("_", "-"), factory)

    def __getitem__(self, name: str) -> Callable:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def add(self, name: str, factory: Callable) -> None:
        """Give a name to what `factory` makes; a name is given once."""
        if self._known.get(name, factory) is not factory:
            raise ValueError(f"the {self.word} {name!r} is already registered")
        self._known[name] = factory

    def find(self, name: Any, *, where: str) -> Callable:
        """What has that name; "package.module:name" is imported if whoever reads the file allows.

        It is written by that name from then on, but every file needs the permission again.
        """
        if isinstance(name, str) and ":" in name:
            try:
                self._known[name] = self._import(name)
            except ValueError as error:
                raise ConfigError(f"{where}: {error}") from error
        check_known(name, self._known, where=where)
        return self._known[name]

    def _import(self, name: str) -> Callable:
        """A class that has what is needed in this place; anything else is refused uncalled."""
        check_allowed(name)
        imported = import_named(name)
        if any(imported is known for known in self._known.values()):
            return imported  # such as "isfed:Memory", a function
        if not isinstance(imported, type):
            raise ValueError(f"{name!r} is {imported!r}, not a class that can be a {self.word!r}")
        absent = missing_members(imported, self.protocol)
        if absent:
            fits = [w for w, r in PARTS.items() if not missing_members(imported, r.protocol)]
            raise ValueError(
                f"{name!r} cannot be used as {self.word!r}: the class has no {', '.join(absent)}; "
                + (f"it is a part: write {fits[0]} = {name!r}, without kind" if fits else
                   "write them as methods, properties or fields of the class (docs/extend.md)")
            )  # fmt: skip
        return imported

    def options(self, factory: Callable) -> dict[str, Argument]:
        """The options of what `factory` makes, by the key of a file.

        The word itself names the object, so an option that is called the same, such as `design` of
        `Spread`, has the key `by`, and holds another object of this registry.
        """
        keys = arguments(factory)
        inner = keys.pop(self.word, None)
        return keys if inner is None else {BY: replace(inner, hint=self.word), **keys}

    def read(self, given: Any, where: str) -> Any:
        """An object from its name, or from a table with its name and its options."""
        table = {self.word: given} if isinstance(given, str) else given
        check_keys(table, where=where, needed=(self.word,))
        name = table[self.word]
        factory = self.find(name, where=f"{where}.{self.word}")
        options = {key: value for key, value in table.items() if key != self.word}
        keys = self.options(factory)
        readers = {**READERS, self.word: self.read}
        values = read_arguments(options, keys, where=f"{where} ({name})", readers=readers)
        values = {keys[key].name: value for key, value in values.items()}
        return make(factory, values, where=where)

    def write(self, value: Any) -> Any:
        """The table that makes an object again, or its name alone if it has no options."""
        name = self.name_of(value)
        if name is None:
            return repr(value)
        keys = self.options(self._known[name])
        options = {key: getattr(value, argument.name) for key, argument in keys.items()}
        if BY in options:
            options[BY] = self.write(options[BY])
        made = written(options, {key: replace(keys[key], hint=Any if key == BY else keys[key].hint)
                                 for key in options})  # fmt: skip
        return {self.word: name, **made} if made else name

    def name_of(self, value: Any) -> str | None:
        """The name of what made an object; None if nothing here did."""
        for name, factory in self._known.items():
            if factory is type(value):
                return name
        name = getattr(value, "name", None)  # a policy knows its name: a function made it
        return name if name in self._known else None


METHODS = Registry("kind", Algorithm)
POLICIES = Registry(
    "policy", Policy, uniform=Uniform, oracle=Oracle, current=Current, running=Running,
    memory=Memory,
)  # fmt: skip
DESIGNS = Registry(
    "design", Design, systematic=Systematic, hartley_rao=HartleyRao, deville=Deville,
    sampford=Sampford, poisson=Poisson, with_replacement=WithReplacement, spread=Spread,
    local_pivotal=LocalPivotal,
)  # fmt: skip
LOSSES = Registry(
    "loss", Loss, least_squares=LeastSquares, huber=Huber, logistic=Logistic, softmax=Softmax
)
MIXINGS = Registry("matrix", Callable, ring=Ring, elastic=Elastic, graph=Graph)
SAMPLERS = Registry(
    "sampler", Sampler, uniform=UniformCohort, by_score=ByScore, passes=Passes,
    stratified_passes=StratifiedPasses,
)  # fmt: skip
ESTIMATORS = Registry(
    "estimator",
    Estimator,
    plain_mean=PlainMean,
    horvitz_thompson=HorvitzThompson,
    remembered_mean=RememberedMean,
)
SERVERS = Registry(
    "server", Server, plain=Add, momentum=ServerMomentum, fed_adam=FedAdam, fed_yogi=FedYogi,
    fed_adagrad=FedAdagrad, look_ahead=LookAhead, average=Average,
)  # fmt: skip
PARTS = {"sampler": SAMPLERS, "estimator": ESTIMATORS, "server": SERVERS}
REGISTRIES: dict[Any, Registry] = {
    Policy: POLICIES, Design: DESIGNS, LinearLoss: LOSSES, Mixing: MIXINGS,
}  # fmt: skip
READERS = {kind: registry.read for kind, registry in REGISTRIES.items()}


def register(name: str, factory: Callable) -> None:
    """Let `kind = name` in an [[algorithm]] stand for what `factory` makes.

    Args:
        name: what the file says.
        factory: a dataclass, or a function with annotated keyword parameters, that makes an
            algorithm.
    """
    METHODS.add(name, factory)


for _entry in CATALOGUE:  # all are public names
    register(_entry.name, getattr(isfed, _entry.name))
NOT_KEYS = ("label",)  # the key `name` is what tables and figures show


def method_keys(kind: str) -> dict[str, Argument]:
    """The keys of an [[algorithm]] of that kind, beside `name` and `kind`."""
    return arguments(METHODS[kind], without=NOT_KEYS)


def read_algorithm(given: Any, *, where: str) -> tuple[str, Any, dict[str, Any]]:
    """From an [[algorithm]] to its name, the algorithm, and the table with every default.

    It is of a `kind`, or spelled in parts: `sampler`, `estimator`, `server` and the local steps.
    A method of a kind may also have a `server`, through which its steps go.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} must be a table of keys, got {given!r}")
    if "sampler" in given:
        algorithm, table = _in_parts(given, where)
    else:
        algorithm, table = _of_kind(given, where)
    name = given.get("name", algorithm.name)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: name={name!r} must be a text")
    return name, algorithm, {"name": name, **table}


def _of_kind(given: Mapping[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
    kind = given.get("kind", "ISFedAvg")
    factory = METHODS.find(kind, where=f"{where}: kind")
    keys = method_keys(kind)
    outside = () if "server" in keys else ("server",)
    check_keys(given, ("name", "kind", *keys, *outside), where=where)
    table = {key: value for key, value in given.items() if key in keys}
    options = read_arguments(table, keys, where=where, readers=READERS)
    algorithm = make(factory, options, where=where)
    again = {"kind": kind, **written(options, keys)}
    if outside and "server" in given:
        server = SERVERS.read(given["server"], f"{where}: server")
        algorithm = make(Served, {"algorithm": algorithm, "server": server}, where=where)
        again["server"] = SERVERS.write(server)
    return algorithm, again


def _in_parts(given: Mapping[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
    if "kind" in given:
        raise ConfigError(f"{where} is spelled in parts, for it has a sampler: leave out 'kind'")
    keys = arguments(LocalSteps)
    check_keys(given, ("name", *PARTS, "num_active", "client_weights", *keys), where=where)
    sampler = given["sampler"]
    sampler = {"sampler": sampler} if isinstance(sampler, str) else dict(sampler)
    if "num_active" in given:
        sampler.setdefault("num_active", given["num_active"])
    tables = {"estimator": "plain-mean", "server": "plain", **given, "sampler": sampler}
    parts = {key: registry.read(tables[key], f"{where}: {key}") for key, registry in PARTS.items()}
    table = {key: value for key, value in given.items() if key in keys}
    options = read_arguments(table, keys, where=where, readers=READERS)
    local = make(LocalSteps, options, where=where)
    weights = {key: given[key] for key in ("client_weights",) if key in given}
    algorithm = make(Federated, {**parts, "local": local, **weights}, where=where)
    again = {key: registry.write(parts[key]) for key, registry in PARTS.items()}
    return algorithm, {**again, **written(options, keys), **weights}


def with_values(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """An [[algorithm]] with those of some values that it takes and does not give."""
    known = ("num_active", *arguments(LocalSteps))
    if "sampler" not in given:
        kind = given.get("kind", "ISFedAvg")
        known = method_keys(kind) if METHODS.find(kind, where="kind") else ()
    return {key: value for key, value in values.items() if key in known} | dict(given)


def lacks_step_size(given: Any) -> bool:
    """Whether an [[algorithm]] gives no step size though it takes one."""
    return (
        isinstance(given, Mapping)
        and "step_size" in with_values(given, {"step_size": 0})
        and ("step_size" not in given)
    )


def write_algorithm(name: str, algorithm: Any) -> dict[str, Any]:
    """The [[algorithm]] that makes an algorithm again, as far as it is of a kind with a name."""
    kind = METHODS.name_of(algorithm)
    if kind is None:
        return {"name": name, "kind": type(algorithm).__qualname__, "record": repr(algorithm)}
    keys = method_keys(kind)
    options = {key: getattr(algorithm, key) for key in keys}
    return {"name": name, "kind": kind, **written(options, keys)}


def written(options: Mapping[str, Any], keys: Mapping[str, Argument]) -> dict[str, Any]:
    """The table that gives those arguments; what is None is left out: TOML has no word for it."""
    table = {}
    for name, value in options.items():
        kinds = (keys[name].hint, *get_args(keys[name].hint))
        registry = next((REGISTRIES[kind] for kind in kinds if kind in REGISTRIES), None)
        if value is not None:
            table[name] = write_value(value) if registry is None else registry.write(value)
    return table
