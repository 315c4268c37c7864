"""Configurations: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from isfed import Clock, Deville, HartleyRao, Memory, Oracle, Score, Systematic, Uniform
from isfed.studies import ConfigError, make_experiment, read_experiment
from isfed.studies.config_schema import arguments, write_value


def test_names_become_objects(small):
    small["algorithm"].append(
        {
            "name": "mine",
            "step_size": 0.02,
            "num_active": 2,
            "agents": {"policy": "memory", "floor": 0.05, "score": "second-moment", "rate": 0.3},
            "examples": "oracle",
            "agent_design": "systematic",
            "example_design": "hartley-rao",
        }
    )
    algorithm = make_experiment(small).algorithms["mine"]
    assert algorithm.agents == Memory(floor=0.05, score=Score.SECOND_MOMENT, rate=0.3)
    assert algorithm.examples == Oracle()
    assert algorithm.agent_design == Systematic()
    assert algorithm.example_design == HartleyRao()


def test_defaults(small):
    fedavg, ours = make_experiment(small).algorithms.values()
    assert fedavg.agents == Uniform()
    assert not fedavg.divide_by_steps
    assert ours.agents == ours.examples == Memory()
    assert ours.agent_design == Deville()


def test_resolved_configuration_makes_the_same_experiment(small):
    experiment = make_experiment(small)
    again = make_experiment(tomllib.loads(experiment.to_toml()))
    assert again.digest == experiment.digest
    assert again.algorithms == experiment.algorithms
    assert again.source == experiment.source


def test_a_clock_has_the_keys_of_its_record(small):
    assert make_experiment(small).clock is None
    assert "clock" not in make_experiment(small).resolved
    small["clock"] = {"rate": [5, 50], "drop": 0.2}
    experiment = make_experiment(small)
    assert experiment.clock == Clock(rate=(5.0, 50.0), drop=0.2)
    again = make_experiment(tomllib.loads(experiment.to_toml()))
    assert again.clock == experiment.clock
    assert again.digest == experiment.digest
    small["clock"] = {key: write_value(getattr(experiment.clock, key)) for key in arguments(Clock)}
    assert make_experiment(small).digest == experiment.digest  # every field is a key


def test_the_digest_sees_every_change(small):
    digests = {make_experiment(small).digest}
    for change in ({"rounds": 61}, {"seed": 6}, {"repetitions": 4}, {"clock": {}}):
        digests.add(make_experiment({**small, **change}).digest)
    small["problem"]["ridge"] = 0.01
    digests.add(make_experiment(small).digest)
    small["algorithm"][1]["examples"] = {"policy": "memory", "floor": 0.2}
    digests.add(make_experiment(small).digest)
    assert len(digests) == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 3}, ["'round'", "rounds"]),
        ({"rounds": -5}, ["rounds=-5"]),
        ({"rounds": 2.5}, ["rounds=2.5"]),
        ({"repetitions": 0}, ["repetitions=0"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"name": "a/b"}, ["a/b"]),
        ({"algorithm": []}, ["[[algorithm]]"]),
        ({"problem": {"preset": "papr"}}, ["papr", "'paper'"]),
        ({"problem": {"preset": {"x": 1}}}, ["preset={'x': 1}"]),
        ({"problem": {"preset": ["paper"]}}, ["preset=['paper']"]),
        ({"problem": {"num_agent": 3}}, ["'num_agent'", "num_agents"]),
        ({"problem": {"num_agents": 0}}, ["num_agents=0"]),
        ({"problem": {"num_agents": 2}}, ["num_active=3", "num_agents=2"]),
        ({"problem": {"noise_ratio": -1.0}}, ["noise_ratio=-1.0"]),
        ({"problem": 3}, ["[problem]", "3"]),
        ({"problem": {"num_agents": 12.5}}, ["num_agents=12.5"]),
        ({"problem": {"local_steps": 3}}, ["local_steps=3"]),
        ({"problem": {"local_steps": [1.5, 2.5]}}, ["local_steps"]),
        ({"algorithm": [1]}, ["algorithm 1", "1"]),
        ({"name": ".."}, [".."]),
        ({"clock": 3}, ["clock=3", "a table with the keys rate, upload"]),
        ({"clock": {"rat": [1.0, 2.0]}}, ["'rat'", "clock", "'rate'"]),
        ({"clock": {"rate": [2.0, 1.0]}}, ["clock", "rate=(2.0, 1.0)", "range"]),
        ({"clock": {"rate": 5.0}}, ["clock: rate=5.0", "a list of 2"]),
        ({"clock": {"latency": -1.0}}, ["latency=-1.0", ">= 0"]),
        ({"clock": {"drop": 1.0}}, ["drop=1.0", "below 1"]),
        ({"clock": {"jitter": "much"}}, ["jitter='much'", "a number"]),
        ({"clock": {}, "engine": "kernel"}, ["engine='kernel'", "[clock]"]),
    ],
)
def test_bad_keys_and_values_are_named(small, change, words):
    with pytest.raises(ConfigError) as caught:
        make_experiment({**small, **change})
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"agents": "memry"}, ["memry", "'memory'"]),
        ({"agents": {"policy": "oracle", "rate": 0.1}}, ["'rate'", "oracle"]),
        ({"agents": {"floor": 0.1}}, ["'policy'"]),
        ({"agents": {"policy": "memory", "score": "bound"}}, ["BOUND", "AVERAGED_BOUND"]),
        ({"agents": {"policy": "memory", "score": "bond"}}, ["score='bond'", "'bound'"]),
        ({"num_active": 2.5}, ["num_active=2.5", "whole number"]),
        ({"num_active": True}, ["num_active=True", "whole number"]),
        ({"step_size": [0.1]}, ["step_size=[0.1]", "a number or 'auto'"]),
        ({"agent_design": "devile"}, ["devile", "'deville'"]),
        ({"step_sise": 0.1}, ["step_sise", "step_size"]),
        ({"step_size": -0.1}, ["step_size=-0.1"]),
        ({"step_size": "x"}, ["step_size"]),
        ({"kind": "FedAvgg"}, ["FedAvgg", "'FedAvg'"]),
        ({"examples": {"policy": "memory", "floor": 1.5}}, ["floor", "1.5"]),
        ({"name": "FedAvg"}, ["two algorithms", "FedAvg"]),
        ({"name": 5}, ["name=5"]),
        ({"divide_by_steps": "no"}, ["divide_by_steps='no'"]),
        ({"examples": {"policy": "memory", "floor": "x"}}, ["examples"]),
    ],
)
def test_bad_algorithms_are_named(small, change, words):
    small["algorithm"][1].update(change)
    with pytest.raises(ConfigError) as caught:
        make_experiment(small)
    for word in words:
        assert word in str(caught.value)


def test_a_missing_step_size_is_named(small):
    del small["algorithm"][0]["step_size"]
    with pytest.raises(ConfigError, match="step_size"):
        make_experiment(small)


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        read_experiment(tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        read_experiment(broken)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        read_experiment(binary)


def test_stating_a_default_changes_nothing(small):
    digest = make_experiment(small).digest
    small["algorithm"][1].update({"drift": 0.0, "divide_by_steps": True, "agent_design": "deville"})
    assert make_experiment(small).digest == digest
