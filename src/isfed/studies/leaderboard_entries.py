"""The methods of a leaderboard: by name, spelled out in parts, or from a file of the user's own."""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from isfed.base.import_by_name import missing_members, user_modules
from isfed.federation.variate_updates import Correction
from isfed.methods.by_score import ByScore
from isfed.methods.catalogue import ALL, CANDIDATES, CATALOGUE, HEARD, ORACLE, Knob
from isfed.methods.control_variates import ControlVariates
from isfed.methods.estimators import Extrapolated, HorvitzThompson, PlainMean
from isfed.methods.federated import Federated
from isfed.methods.fedvarp import RememberedMean
from isfed.methods.kvib import CumulativeNorms
from isfed.methods.local_steps import LocalSteps
from isfed.methods.method_protocol import Algorithm
from isfed.methods.passes_over_agents import Passes
from isfed.methods.power_of_choice import LargestLosses
from isfed.methods.servers import Add, Average, FedAdam, LookAhead, ServerMomentum
from isfed.methods.stratified_passes import StratifiedPasses
from isfed.methods.uniform_samplers import UniformCohort
from isfed.sampling.designs import Deville, Spread, WithReplacement
from isfed.sampling.policies import Memory, Uniform
from isfed.studies.config_schema import ConfigError, check_keys, check_known, nearest
from isfed.studies.name_registry import METHODS, method_keys, read_algorithm, register

CLASSES = (HEARD, CANDIDATES, ALL, ORACLE)  # what a method must hear; the last is never ranked
GROUP = "isfed.methods"  # of entry points
NOT_OPTIONS = ("hears", "tune", "plugin")  # keys of a [[method]] that its record does not have
EXAMPLES = WithReplacement()  # how examples are drawn in a composition

# Parts by the names that a study file uses. A sampler is made for L agents and T rounds.
SAMPLERS: dict[str, Callable[[int, int], Any]] = {
    "uniform": lambda num, rounds: UniformCohort(num),
    "by score": lambda num, rounds: ByScore(num, Memory()),
    "spread by score": lambda num, rounds: ByScore(num, Memory(), Spread(Deville())),
    "shuffled passes": lambda num, rounds: Passes(num),
    "passes by score": lambda num, rounds: Passes(num, Memory()),
    "stratified passes": lambda num, rounds: StratifiedPasses(num),
    "all norms so far": lambda num, rounds: CumulativeNorms(num, rounds),
    "largest losses": lambda num, rounds: LargestLosses(num, 2 * num, "uniform"),
}


def _variates(kind: Any) -> Callable[[Any], Any]:
    return lambda sampler: ControlVariates(
        Correction(kind), getattr(sampler, "policy", Uniform()), EXAMPLES
    )


ESTIMATORS: dict[str, Callable[[Any], Any]] = {  # made for a sampler
    "plain mean": lambda sampler: PlainMean(),
    "Horvitz-Thompson": lambda sampler: HorvitzThompson("change"),
    "last changes of all": lambda sampler: RememberedMean(),
    "control variates": _variates("difference"),
    "steered variates": _variates("drift"),
    "extrapolated": lambda sampler: Extrapolated(HorvitzThompson("change")),
}
SERVERS: dict[str, Callable[[], Any]] = {
    "plain": Add,
    "average": Average,
    "momentum": ServerMomentum,
    "look-ahead": lambda: LookAhead(ServerMomentum()),
    "averaged look-ahead": lambda: Average(LookAhead(ServerMomentum())),
    "FedAdam": FedAdam,
}
PARTS: dict[str, Mapping[str, Any]] = {
    "sampler": SAMPLERS, "estimator": ESTIMATORS, "server": SERVERS,
}  # fmt: skip
ASKS = {"largest losses": CANDIDATES}  # samplers that hear more than the agents they draw


def compose(
    parts: Mapping[str, str], *, step_size: float, num_active: int, rounds: int
) -> Federated:
    """The method of three named parts, with local steps of step_size / E_k.

    A ValueError says what a part needs that no other gives.

    Args:
        parts: the names of `sampler`, `estimator` and `server`.
        step_size: of the local steps.
        num_active: L, the number of agents per round.
        rounds: of the run.
    """
    sampler = SAMPLERS[parts["sampler"]](num_active, rounds)
    estimator = ESTIMATORS[parts["estimator"]](sampler)
    local = LocalSteps(step_size, divide_by_steps=True, example_design=EXAMPLES)
    return Federated(sampler, local, estimator, SERVERS[parts["server"]]())


@dataclass(frozen=True, eq=False)
class BoardMethod:
    """A method of a leaderboard, without the numbers that are tuned.

    Attributes:
        name: in the tables.
        table: what the study file says of it.
        options: of that, what makes the method.
        hears: what it must hear of agents in a round; one of `CLASSES`.
        knobs: what is tuned besides the step size.
    """

    name: str
    table: Mapping[str, Any]
    options: Mapping[str, Any]
    hears: str = HEARD
    knobs: tuple[Knob, ...] = ()

    def make(self, *, step_size: Any, num_active: int, rounds: int, **knobs: float) -> Any:
        """The method with these numbers."""
        run = {"step_size": step_size, "num_active": num_active}
        if "kind" not in self.options:
            return compose({key: self.options[key] for key in PARTS}, **run, rounds=rounds)
        known = method_keys(self.options["kind"])
        run = {key: value for key, value in (run | {"horizon": rounds}).items() if key in known}
        return read_algorithm(run | dict(self.options) | knobs, where=self.name)[1]

    @property
    def divides(self) -> bool:
        """Whether local steps are divided by E_k, as those of a composition are."""
        return "kind" not in self.options or bool(self.options.get("divide_by_steps"))

    @property
    def takes_auto(self) -> bool:
        """Whether step_size = "auto" is a step size of this method."""
        try:
            self.make(step_size="auto", num_active=1, rounds=1)
        except (TypeError, ValueError):
            return False
        return "kind" in self.options


def read_method(given: Mapping[str, Any], *, where: str) -> BoardMethod:
    """A [[method]] of a study file: of a kind, or spelled out in parts."""
    check_keys(given, where=where)
    table = {key: value for key, value in given.items() if key not in NOT_OPTIONS}
    if "kind" not in table:
        return _composition(table, given, where)
    kind = table["kind"]
    factory = METHODS.find(kind, where=f"{where}: kind")
    entry = next((one for one in CATALOGUE if one.name == kind), factory)
    name = table.setdefault("name", kind)
    hears = given.get("hears", getattr(entry, "hears", HEARD))
    check_known(hears, CLASSES, where=f"{where}: hears")
    knobs = tuple(
        knob if isinstance(knob, Knob) else Knob(*knob) for knob in getattr(entry, "knobs", ())
    )
    unknown = [knob.name for knob in knobs if knob.name not in method_keys(kind)]
    if unknown or len(knobs) > 2:
        raise ConfigError(
            f"{where}: knobs={[knob.name for knob in knobs]} must be at most two fields of {kind}"
        )
    tuned = knobs if given.get("tune", True) else ()
    method = BoardMethod(name, {**given, "name": name}, table, hears, tuned)
    method.make(step_size=1.0, num_active=1, rounds=1)  # what is wrong in the file is said now
    return method


def _composition(table: dict[str, Any], given: Mapping[str, Any], where: str) -> BoardMethod:
    check_keys(table, ("name", *PARTS), where=where)
    for key, known in PARTS.items():
        table.setdefault(key, "plain" if key == "server" else "")
        check_known(table[key], known, where=f"{where}: {key}")
    parts = {key: table[key] for key in PARTS}
    name = table.setdefault("name", " / ".join(parts.values()))
    hears = given.get("hears", ASKS.get(parts["sampler"], HEARD))
    try:
        compose(parts, step_size=1.0, num_active=1, rounds=1)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    return BoardMethod(name, {**given, **table}, table, hears)


def plugin_methods(plugins: Sequence[str]) -> list[dict[str, Any]]:
    """The [[method]] tables of plugins, whose classes have a name from now on.

    A plugin is a Python file, whose dataclasses with the members of a method all take part, or
    the name of an entry point in the group "isfed.methods".
    """
    tables = []
    for plugin in plugins:
        load = _file_kinds if plugin.endswith(".py") else _named_kind
        try:
            mark, kinds = load(plugin)
        except Exception as error:  # the code is the user's, and may raise anything
            told = str(error) if isinstance(error, _RefusedError) else explain(error)
            raise ConfigError(f"--plugin {plugin}: {told}") from error
        for kind in kinds:
            register(kind.__name__, kind)
            tables.append({"kind": kind.__name__, "name": kind.__name__, "plugin": mark})
    return tables


class _RefusedError(ConfigError):
    """What a plugin lacks, said by us."""


def _file_kinds(plugin: str) -> tuple[str, list[type]]:
    """The methods in a file, which is run."""
    path = Path(plugin)
    if not path.is_file():
        raise _RefusedError("there is no such file")
    folder, stem = str(path.resolve().parent), path.stem
    if folder not in sys.path:
        sys.path.append(folder)  # so that worker processes find it too
    module = importlib.import_module(stem)
    if Path(str(module.__file__)).resolve() != path.resolve():
        raise _RefusedError(f"Python finds {module.__file__} first; give your file another name")
    user_modules.append(module)
    made_here = [v for v in vars(module).values() if getattr(v, "__module__", "") == stem]
    classes = [v for v in made_here if isinstance(v, type) and is_dataclass(v)]
    kinds = [kind for kind in classes if not missing_members(kind, Algorithm)]
    if not kinds:
        lacks = "; ".join(
            f"{kind.__name__} has no {', '.join(missing_members(kind, Algorithm))}"
            for kind in classes
        )
        raise _RefusedError(
            "it has no method, which is a dataclass with step_size, rules, start, round and "
            f"model (docs/extend.md){': ' + lacks if lacks else ''}"
        )
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16], kinds


def _named_kind(name: str) -> tuple[str, list[type]]:
    """The method of an entry point."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        known = nearest(name, points) if points else "; no installed package has one"
        raise _RefusedError(f"neither a .py file nor an entry point of {GROUP!r}{known}")
    point = points[name]
    kind = point.load()
    absent = missing_members(kind, Algorithm) if isinstance(kind, type) else ["a class"]
    if absent:
        raise _RefusedError(f"{point.value} lacks {', '.join(absent)}")
    return f"{point.value} {point.dist.version if point.dist else ''}".strip(), [kind]


def explain(error: BaseException) -> str:
    """An error with the file and line that raised it: the user's own if one is involved."""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if isinstance(error, SyntaxError):
        return f"{what.partition(' (')[0]} ({error.filename}, line {error.lineno})"
    package = str(Path(__file__).resolve().parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not f.filename.startswith((package, "<"))]
    own = [f for f in outside if "site-packages" not in f.filename and "/lib/python" not in
           f.filename]  # fmt: skip
    frame = (own or frames or [None])[-1]
    return what if frame is None else f"{what} ({frame.filename}, line {frame.lineno})"
