"""Every public constructor and function refuses what it cannot use, by the argument's name.

The table says what each argument takes; every kind of value that it does not take is tried.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pytest
from bad_arguments import complaint, complaints

import isfed
from isfed import (
    PAPER,
    Columns,
    FederatedData,
    LeastSquares,
    Memory,
    Problem,
    Stream,
    SumTree,
    Uniform,
)
from isfed.datasets.read_options import Reading
from isfed.federation.agent import AgentConfig
from isfed.flower import Absences, Privacy, Safety, ScoreRange
from isfed.simulate.run_history import History

NUMBERS = {"step_size": "positive", "num_active": "whole", "local_steps": "whole?"}
METHOD = {"step_size": "positive", "full_batch": "flag", "client_weights": "word"}
SELECTED = {**METHOD, "num_active": "whole", "local_steps": "whole?"}
EVERYBODY = {**METHOD, "steps": "whole"}
BASE = {"step_size": 0.1}
DRAWN = {"step_size": 0.1, "num_active": 2}
# name -> (arguments that are right, the kind of each argument; "?" if None is right too)
METHODS: dict[str, tuple[dict, dict]] = {
    "FedAvg": (DRAWN, {"step_size": "positive", "num_active": "whole", "divide_by_steps": "flag",
                       "full_batch": "flag"}),
    "DynamicFedAvg": (DRAWN, {"step_size": "positive", "num_active": "whole", "drift": "amount",
                              "full_batch": "flag"}),
    "ISFedAvg": (DRAWN, {
        "step_size": "positive", "num_active": "whole", "agents": "object", "examples": "object",
        "agent_design": "object", "example_design": "object", "divide_by_steps": "flag",
        "drift": "amount", "correction": "object?", "weighting": "word?", "absences": "word",
        "client_weights": "word", "full_batch": "flag", "label": "text", "costs": "costs",
    }),
    "FOLB": (DRAWN, {**SELECTED, "prox": "amount", "variant": "word", "penalty": "amount",
                     "absolute": "flag"}),
    "FedAvgScheme": (DRAWN, {**SELECTED, "scheme": "word", "decay": "amount"}),
    "FedCS": (DRAWN, {**SELECTED, "deadline": "limit"}),
    "FedProx": (DRAWN, {**SELECTED, "prox": "amount", "stragglers": "share",
                        "keep_stragglers": "flag", "sampling": "word"}),
    "HybridFL": (DRAWN, {**SELECTED, "deadline": "limit", "permit": "share", "fetch": "whole",
                         "num_classes": "whole", "server_steps": "whole?",
                         "server_batch": "whole"}),
    "QFedAvg": (DRAWN, {**SELECTED, "power": "amount"}),
    "QFedSGD": (DRAWN, {**SELECTED, "power": "amount"}),
    "KAVG": ({**BASE, "steps": 2}, {"step_size": "positive", "steps": "whole",
                                    "client_weights": "word"}),
    "AdaptiveTau": (BASE, {**EVERYBODY, "budget": "positive", "local_cost": "pair",
                           "average_cost": "pair", "phi": "positive", "most_steps": "whole",
                           "adapt": "flag"}),
    "AgnosticFL": (BASE, {"step_size": "positive", "mixture_step": "amount",
                          "stochastic": "flag", "client_weights": "word"}),
    "CooperativeSGD": (BASE, {**EVERYBODY, "mixing": "function?", "auxiliary": "whole",
                              "label": "text"}),
    "DecentralisedSGD": (BASE, {"step_size": "positive", "mixing": "function",
                                "full_batch": "flag"}),
    "ElasticAveraging": (BASE, {"step_size": "positive", "steps": "whole", "pull": "amount?",
                                "full_batch": "flag"}),
    "FedAsync": (BASE, {"step_size": "positive", "mixing": "share", "prox": "amount",
                        "staleness": "word", "power": "amount", "delay": "whole",
                        "in_flight": "whole?", "max_age": "whole", "history": "whole?",
                        "local_steps": "range?", "full_batch": "flag"}),
    "FullySynchronousSGD": (BASE, {"step_size": "positive", "full_batch": "flag"}),
    "HierFAVG": (BASE, {**EVERYBODY, "edge_rounds": "whole", "edges": "whole"}),
    "LocalGD": (BASE, EVERYBODY),
    "LocalSGD": (BASE, EVERYBODY),
    "Mocha": ({}, {"penalty": "positive", "inner_rounds": "whole", "learn_relations": "flag",
                   "effort": "range", "drop": "share", "loss": "word"}),
    "MomentumSGD": (BASE, {**EVERYBODY, "momentum": "share", "nesterov": "flag",
                           "buffer": "word"}),
    "PeriodicAveraging": ({**BASE, "steps": 2}, {"step_size": "positive", "steps": "whole",
                                                 "full_batch": "flag"}),
    "RestartedSGD": (BASE, {**EVERYBODY, "average": "word"}),
    "StichSGD": ({"strong": 1.0, "shift": 9.0}, {
        "strong": "positive", "shift": "positive", "steps": "whole", "client_weights": "word",
        "full_batch": "flag"}),
}  # fmt: skip


@cache
def small() -> Problem:
    return PAPER.replace(num_agents=4, num_examples=6, batch_size=(1, 2)).make(seed=1)


@cache
def history() -> History:
    method = isfed.ISFedAvg(step_size=0.01, num_active=2)
    return isfed.simulate(small(), method, rounds=2, engine="objects")


def method() -> Any:
    return isfed.FedAvg(step_size=0.01, num_active=2)


def rules() -> AgentConfig:
    return method().rules(4)


HALF = [0.5, 0.5]
ROWS = {"features": np.eye(2), "targets": np.ones(2), "offsets": [0, 1, 2]}
RUN = {"problem": small, "algorithm": method, "rounds": 2, "engine": "objects"}
TABLE = pa.table({"a": ["one", "one", "two", "two"], "x": [1, 2, 3, 5], "t": [0.0, 1.0, 2.0, 3.0]})
OTHERS: dict[str, tuple[Any, dict, dict]] = {
    "Memory": (isfed.Memory, {}, {"floor": "share", "score": "object", "rate": "share"}),
    "Running": (isfed.Running, {}, {"floor": "share"}),
    "Current": (isfed.Current, {}, {"floor": "share"}),
    "Oracle": (isfed.Oracle, {}, {"floor": "share"}),
    "Correction": (isfed.Correction, {"kind": "drift"}, {"kind": "word", "gain": "share",
                                                         "unseen": "word"}),
    "Federated": (isfed.Federated, {"sampler": isfed.ByScore(2), "local": isfed.LocalSteps(0.1),
                                    "estimator": isfed.Mean()}, {
        "sampler": "object", "local": "object", "estimator": "object", "server": "object",
        "client_weights": "word"}),
    "ControlVariates": (isfed.ControlVariates, {
        "correction": isfed.Correction("drift"), "agents": Memory(),
        "example_design": isfed.Deville()}, {
        "correction": "object", "agents": "object", "example_design": "object", "on": "word"}),
    "InverseResponse": (isfed.InverseResponse, {"inner": isfed.Mean()}, {"inner": "object"}),
    "Clock": (isfed.Clock, {}, {"rate": "range", "upload": "range", "download": "range",
                                "latency": "amount", "jitter": "amount", "drop": "share"}),
    "Columns": (Columns, {"agent": "a", "target": "t"}, {
        "agent": "text", "target": "text", "features": "columns?", "categorical": "columns",
        "drop": "columns", "measured": "columns", "task": "word", "missing": "filling",
        "standardise": "flag", "intercept": "flag", "least_rows": "whole?",
        "drop_missing_target": "flag"}),
    "Reading": (Reading, {}, {"format": "word?", "separator": "text?", "encoding": "word?",
                              "decimal": "word", "na": "columns", "header": "flag"}),
    "LeastSquares": (LeastSquares, {}, {"ridge": "amount"}),
    "Logistic": (isfed.Logistic, {}, {"ridge": "amount"}),
    "Huber": (isfed.Huber, {}, {"ridge": "amount", "knee": "positive"}),
    "Softmax": (isfed.Softmax, {"num_classes": 3}, {"ridge": "amount", "num_classes": "whole"}),
    "Regression": (isfed.Regression, {}, {
        "name": "text", "num_agents": "whole", "num_examples": "whole", "num_features": "whole",
        "feature_variance": "range", "noise_variance": "range", "noisy_share": "share",
        "noise_ratio": "positive", "local_steps": "range", "batch_size": "range",
        "ridge": "amount"}),
    "Regression.make": (PAPER.make, {}, {"seed": "whole"}),
    "FederatedData": (FederatedData, ROWS, {"features": "array", "targets": "array",
                                            "offsets": "array", "weights": "array"}),
    "FederatedData.from_agents": (FederatedData.from_agents, {}, {"agents": "object"}),
    "FederatedData.agent": (lambda **k: small().data.agent(**k), {}, {"agent": "whole"}),
    "Problem": (Problem, {"data": lambda: small().data, "loss": LeastSquares()}, {
        "data": "object", "loss": "object", "local_steps": "whole", "batch_size": "whole",
        "name": "text", "optimum": "array"}),
    "Problem.risk": (lambda **k: small().risk(**k), {}, {"params": "array"}),
    "Problem.local_optimum": (lambda **k: small().local_optimum(**k), {}, {"agent": "whole"}),
    "SumTree": (SumTree, {}, {"weights": "array"}),
    "SumTree.draw": (lambda **k: SumTree([1.0, 2.0]).draw(**k), {"num": 1, "rng": 0}, {
        "num": "whole", "rng": "rng", "design": "object"}),
    "SumTree.update": (lambda **k: SumTree([1.0, 2.0]).update(**k), {"units": [0], "weights": [1]},
                       {"units": "units", "weights": "array"}),
    "Stream": (Stream, {}, {"seed": "rng"}),
    "Stream.uniforms": (lambda **k: Stream(0).uniforms(**k), {}, {"count": "whole"}),
    "Stream.normals": (lambda **k: Stream(0).normals(**k), {}, {"count": "whole"}),
    "Sampford": (isfed.Sampford, {}, {"most_tries": "whole"}),
    **{f"{name}.draw": (getattr(isfed, name)().draw, {"inclusion": HALF, "rng": 0},
                        {"inclusion": "array", "rng": "rng"})
       for name in ("Systematic", "Deville", "HartleyRao", "Sampford", "Poisson",
                    "WithReplacement")},
    **{f"{name}.joint": (getattr(isfed, name)().joint, {}, {"inclusion": "array"})
       for name in ("Systematic", "Deville", "HartleyRao", "Sampford", "Poisson")},
    **{name: (getattr(isfed, name), {
        "values": [1.0, 2.0], "units": [0, 1], "inclusion": [0.5, 0.5, 0.5, 0.5],
        "design": isfed.Brewer()}, {
        "values": "array", "units": "units", "inclusion": "array", "design": "object",
        "method": "word", "variance": "word?", "confidence": "share"})
       for name in ("estimate_total", "estimate_mean")},
    "Stratified": (isfed.Stratified, {"design": isfed.Brewer(), "strata": [0, 0, 1, 1]},
                   {"design": "object"}),
    "Clustered": (isfed.Clustered, {"design": isfed.Brewer(), "clusters": [0, 0, 1, 1]},
                  {"design": "object"}),
    "Cube": (isfed.Cube, {"balanced": np.ones((4, 1))}, {"balanced": "array"}),
    "inclusion_probabilities": (isfed.inclusion_probabilities, {"scores": HALF, "num": 1}, {
        "scores": "array", "num": "whole", "floor": "share"}),
    "AgentConfig": (AgentConfig, {"num_agents": 2, "step_size": 0.1, "examples": Uniform(),
                      "example_design": isfed.Deville(), "agents": Memory()}, {
        "num_agents": "whole", "step_size": "number", "examples": "object",
        "example_design": "object", "agents": "object", "divide_by_steps": "flag"}),
    "Agent": (isfed.Agent, {"index": 0, "data": (np.eye(2), np.ones(2)), "loss": LeastSquares(),
                            "work": (1, 1), "rules": rules}, {
        "index": "whole", "data": "object", "loss": "object", "work": "object",
        "rules": "object"}),
    "simulate": (isfed.simulate, RUN, {
        "problem": "object", "algorithm": "object", "rounds": "whole", "repetitions": "whole",
        "seed": "whole", "initial": "array", "engine": "word", "threads": "whole?",
        "clock": "object?", "measure": "object?", "keep": "rounds", "progress": "function?"}),
    "History.watched": (lambda **k: history().watched(**k), {}, {"column": "word"}),
    "History.variance_ratio": (lambda **k: history().variance_ratio(**k), {}, {"rate": "share"}),
    "History.steady": (lambda **k: history().steady(**k), {}, {"share": "share"}),
    "read_table": (isfed.read_table, {"source": TABLE,
                                      "columns": Columns(agent="a", target="t")}, {
        "columns": "object", "reading": "object?", "release": "flag"}),
    "LocalPivotal": (isfed.LocalPivotal, {}, {"points": "array"}),
    "Served": (isfed.Served, {"algorithm": method, "server": isfed.FedAdam()}, {
        "algorithm": "object", "server": "object"}),
    "Privacy": (Privacy, {"clip": 1.0}, {"clip": "positive", "noise": "amount"}),
    "ScoreRange": (ScoreRange, {"low": 0.1, "high": 2.0}, {"low": "amount", "high": "positive"}),
    "Safety": (Safety, {"absences": Absences.ADJUSTED}, {
        "absences": "object", "largest_adjustment": "limit", "enough": "share",
        "patience": "share", "scores": "object", "most_inclusion": "share?",
        "largest_change": "limit", "largest_ratio": "limit", "most_refusals": "whole",
        "privacy": "object?"}),
    "load_results": (isfed.load_results, {}, {"folder": "path"}),
    "diagnose": (isfed.diagnose, {"problem": small, "num_active": 2}, {
        "problem": "object", "num_active": "whole", "importance": "object?", "params": "array"}),
    "certify": (isfed.certify, {"problem": small, "algorithm": method, "rounds": 2, "samples": 5}, {
        "problem": "object", "algorithm": "object", "params": "array", "rounds": "whole",
        "samples": "whole", "confidence": "share", "seed": "whole"}),
    "stable_step_size": (isfed.stable_step_size, {"problem": small, "algorithm": method}, {
        "problem": "object", "algorithm": "object", "initial": "array"}),
    "step_limits": (isfed.step_limits, {"problem": small, "algorithm": method}, {
        "problem": "object", "algorithm": "object", "choices": "object?"}),
}  # fmt: skip
USUAL = {
    "step_size": 0.1, "num_active": 2, "steps": 2, "schedule": lambda number: 0.1,
    "algorithm": isfed.FedAvg(step_size=0.1, num_active=2), "server": isfed.FedAdam(),
}  # fmt: skip
PLAIN = {int: "int", float: "number", bool: "flag", str: "text"}


def derived(name: str) -> tuple[Any, dict, dict] | None:
    """What the annotations of a method say, where the table has no line for it."""
    call = getattr(isfed, name)
    hints = get_type_hints(call)
    given, kinds = {}, {}
    for argument, parameter in inspect.signature(call).parameters.items():
        if parameter.default is parameter.empty:
            if argument not in USUAL:
                return None
            given[argument] = USUAL[argument]
        said = hints.get(argument, Any)
        parts = get_args(said) if get_origin(said) is not Literal else ()
        optional = "?" if type(None) in parts else ""
        plain = [part for part in parts if part is not type(None)]
        hint = plain[0] if optional and len(plain) == 1 else said
        if hint in PLAIN:
            kinds[argument] = PLAIN[hint] + optional
        elif get_origin(hint) is Literal:
            kinds[argument] = "word" + optional
    return call, given, kinds


CALLS = OTHERS | {name: (getattr(isfed, name), *rest) for name, rest in METHODS.items()}
# Protocols, records that methods and agents hand to each other, errors, and what takes nothing.
NOT_CALLED = {
    "Agents", "Algorithm", "Design", "Loss", "Measure", "Method", "Policy", "History",
    "LocalOptions", "ModelState", "Results", "Server", "TrainRequest", "Upload", "Uploads", "Score",
    "Initial", "Purpose", "Refresh", "ScorePolicy",
    "DivergenceError", "NoOptimumError", "Uniform", "EQUAL", "OUTLIERS", "PAPER", "__version__",
    "Cohort", "Estimator", "Evidence", "Facts", "Sampler", "Updates", "Work",
}  # fmt: skip

for public in sorted(set(isfed.__all__) - {name.split(".")[0] for name in CALLS} - NOT_CALLED):
    if (found := derived(public)) is not None:
        CALLS[public] = found


def test_the_table_has_every_public_name():
    tried = {name.split(".")[0] for name in CALLS}
    assert set(isfed.__all__) - tried <= NOT_CALLED


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_by_name(name):
    call, given, kinds = CALLS[name]
    assert complaints(call, given, kinds) == []


@pytest.mark.parametrize("name", METHODS)
def test_right_arguments_are_taken(name):
    call, given, _ = CALLS[name]
    call(**given)
    call(**{k: np.float64(v) if isinstance(v, float) else np.int64(v) for k, v in given.items()})


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("simulate", "rounds"), ("simulate", "repetitions"), ("certify", "rounds"),
        ("Stream.uniforms", "count"), ("StichSGD", "steps"),
    ],
)  # fmt: skip
def test_counts_beyond_every_array_are_refused_by_name(name, argument):
    call, given, _ = CALLS[name]
    for value in (2**63, np.uint64(2**64 - 1), 10**400):
        assert complaint(call, given, argument, value) is None


def test_a_seed_may_be_of_any_size():
    seed: Any = np.random.SeedSequence().entropy  # 128 bits
    assert isfed.simulate(small(), method(), rounds=1, seed=seed).msd.shape == (1, 1)


def test_numbers_of_few_bits_are_taken_as_what_they_are():
    counted: dict[str, Any] = {"rounds": np.int8(2), "repetitions": np.int64(3)}
    sizes: dict[str, Any] = {"num_agents": np.int8(3), "num_examples": np.int8(100)}
    assert isfed.simulate(small(), method(), **counted).msd.shape == (3, 2)
    wide = isfed.Regression(**sizes)
    assert wide.make().data.num_examples.tolist() == [100] * 3
