"""Corrections over Flower: c_k on the agents' disks, c in the cloud's checkpoint.

Agents have a linear model and `agent_turn`, or a network and `torch_turn`.
"""

# pyright: reportMissingImports=false
from dataclasses import replace

import numpy as np
import pytest
import small_flower
from small_flower import AGENTS, initial, make_grid, make_strategy

from isfed import ISFedAvg, Memory, Score, Uniform, WithReplacement
from isfed.base import atomic_files
from isfed.federation.messages import Cohort, Work
from isfed.federation.remote_variates import AgentVariate
from isfed.federation.safety import Privacy, Safety
from isfed.federation.variate_updates import Correction
from isfed.flower import own_turn

DRIFT = ISFedAvg(step_size=0.01, num_active=3, correction="drift")
ALGORITHMS = [
    DRIFT,
    ISFedAvg(step_size=0.01, num_active=3, correction="difference", examples=Uniform()),
    ISFedAvg(step_size=0.01, num_active=2, correction="drift", agents=Uniform()),
    ISFedAvg(
        step_size=0.01, num_active=4, agent_design=WithReplacement(),
        agents=Memory(score=Score.SECOND_MOMENT),
        correction=Correction("drift", gain=0.4, unseen="zero"),
    ),
    ISFedAvg(step_size=0.01, num_active=3, correction="difference", agents=Uniform()),
]  # fmt: skip
SAFETY = Safety(most_inclusion=1.0, largest_ratio=1e9)  # draws as a simulation does


@pytest.fixture(params=["agent_turn", "torch_turn"])
def small(request):
    """A federation whose agents have that handler."""
    if request.param == "agent_turn":
        return small_flower
    pytest.importorskip("torch")
    import small_network

    return small_network


def corrected(algorithm=DRIFT, small=small_flower, **options):
    algorithm = replace(algorithm, step_size=small.STEP_SIZE)
    return make_strategy(algorithm, **{"weighting": "change", "safety": SAFETY, **options})


def mean_gap(strategy, folder):
    """The largest difference between c and the mean of the c_k, read from the agents' files."""
    job, found, estimator = strategy.job, [], strategy.method.estimator
    centre, everybody = job.agents.outward(job.state.estimator.centre), np.arange(AGENTS)
    cohort = Cohort(everybody, AGENTS, np.ones(AGENTS))
    told = estimator.ask(job.state.estimator, cohort, job.agents.facts(), Work(0.1)).control
    for agent in range(AGENTS):
        own, kept = AgentVariate(estimator.rule, centre.size), told.to_agent(agent, centre)
        for path in sorted(folder.glob(f"agent-{agent}-*.npz"), key=lambda p: p.stat().st_mtime):
            stored = atomic_files.load_arrays(path)
            start = "own_after_"
            own.restore({n[len(start) :]: v for n, v in stored.items() if n.startswith(start)})
        own.commit(kept)
        found.append(own.base.copy())
    assert np.abs(found).max() > 1e-3
    return np.abs(np.mean(found, axis=0) - centre).max()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.name} {a.agent_design}")
def test_agrees_with_the_run_in_one_process(tmp_path, small, algorithm):
    strategy = corrected(algorithm, small)
    result = strategy.start(small.make_grid(tmp_path), small.initial(), num_rounds=15)
    expected = small.in_process(15, strategy.algorithm)
    np.testing.assert_allclose(small.params_of(result), expected, rtol=1e-10)
    assert mean_gap(strategy, tmp_path / "state") < 1e-13


@pytest.mark.parametrize("algorithm", ALGORITHMS[:2], ids=lambda a: a.name)
def test_c_is_the_mean_of_the_c_k_although_uploads_are_lost(tmp_path, small, algorithm):
    """Of every third turn the upload is lost after the work, and agent 1 is away now and then."""
    rng = np.random.default_rng(0)
    grid = small.make_grid(tmp_path, lambda agent, reply: None if rng.random() < 0.3 else reply)

    def away(report, _):
        grid.offline = {1001} if report.round_index % 5 == 2 else set()

    strategy = corrected(algorithm, small, on_round=away, time_limit=0.02)
    result = strategy.start(grid, small.initial(), num_rounds=25)
    answered = [m["answered"] for m in result.train_metrics_clientapp.values()]
    assert np.min(answered) < 2  # type: ignore[type-var]
    assert mean_gap(strategy, tmp_path / "state") < 1e-13


@pytest.mark.parametrize("lost_round", [1, 4, 6])
def test_a_cloud_killed_within_a_round_repeats_it(tmp_path, small, lost_round):
    class Killed(BaseException):
        pass

    answers = {"count": 0}

    def kill(_, reply):
        answers["count"] += 1
        if answers["count"] == 3 * (lost_round - 1) + 2:  # two of three agents have worked
            raise Killed
        return reply

    checkpoint = tmp_path / "cloud.npz"
    strategy = corrected(small=small, checkpoint=checkpoint)
    with pytest.raises(Killed):
        strategy.start(small.make_grid(tmp_path, kill), small.initial(), num_rounds=9)
    strategy = corrected(small=small, checkpoint=checkpoint)
    result = strategy.start(small.make_grid(tmp_path), small.initial(), num_rounds=9)
    expected = small.in_process(9, strategy.algorithm)
    np.testing.assert_allclose(small.params_of(result), expected, rtol=1e-10)
    assert mean_gap(strategy, tmp_path / "state") < 1e-13


def as_format_1(strategy, arrays):
    """A checkpoint as the version before this one wrote it: flat, in the order of the arrays."""
    border, kept = strategy.job.agents, strategy.job.state.estimator
    names = ("fingerprint", "job", "round_index")
    return {
        **{name: arrays[name] for name in names},
        **{n.removeprefix("records."): v for n, v in arrays.items() if n.startswith("records.")},
        "params": border.outward(arrays["method.params"]),
        "nodes": arrays["method.sampler.nodes"],
        "centre": border.outward(kept.centre), "book": kept.book, "pool": kept.pool,
        "accepted": kept.accepted,
    }  # fmt: skip


def test_a_job_of_the_version_before_goes_on(tmp_path, small):
    """Its agents' files have the same form; models with buffers were kept in another order."""
    checkpoint = tmp_path / "cloud.npz"
    strategy = corrected(small=small, checkpoint=checkpoint)
    strategy.start(small.make_grid(tmp_path), small.initial(), num_rounds=5)
    assert strategy._lock is not None
    strategy._lock.close()
    old = as_format_1(strategy, atomic_files.load_arrays(checkpoint))
    assert "format" not in old
    atomic_files.save_arrays(checkpoint, old)
    strategy = corrected(small=small, checkpoint=checkpoint)
    result = strategy.start(small.make_grid(tmp_path), small.initial(), num_rounds=9)
    expected = small.in_process(9, strategy.algorithm)
    np.testing.assert_allclose(small.params_of(result), expected, rtol=1e-10)
    assert sorted(result.train_metrics_clientapp) == [6, 7, 8, 9]
    assert atomic_files.load_arrays(checkpoint)["format"] == 2
    assert mean_gap(strategy, tmp_path / "state") < 1e-13


def test_an_agent_killed_before_it_sends_is_as_one_that_is_away(tmp_path, small, monkeypatch):
    """Its files are written or not: the cloud has not heard of the turn in either case."""
    from isfed.flower import agent_handler, agent_state

    count = {"kept": 0}
    keep, pack = agent_state.AgentStateFile.keep, agent_handler.wire_format.pack_upload

    def killed_before(self, told):
        count["kept"] += 1
        if count["kept"] % 7 == 0:
            raise RuntimeError("killed before the file was written")
        keep(self, told)

    def killed_after(*given):
        if count["kept"] % 5 == 0:
            raise RuntimeError("killed after the file was written")
        return pack(*given)

    monkeypatch.setattr(agent_state.AgentStateFile, "keep", killed_before)
    monkeypatch.setattr(agent_handler.wire_format, "pack_upload", killed_after)
    strategy = corrected(small=small)
    strategy.start(small.make_grid(tmp_path), small.initial(), num_rounds=30)
    assert mean_gap(strategy, tmp_path / "state") < 1e-13


def test_a_model_of_small_floats_is_remembered_as_the_cloud_reads_it(tmp_path, small):
    strategy = corrected(small=small)
    strategy.start(small.make_grid(tmp_path), small.initial("float32"), num_rounds=20)
    assert mean_gap(strategy, tmp_path / "state") < 1e-13


def test_an_agent_that_lost_its_files_is_left_out_with_the_reason(tmp_path, small, caplog):
    grid = small.make_grid(tmp_path)

    def lose(report, _):
        if report.round_index == 9:
            for path in (tmp_path / "state").glob("agent-0-*.npz"):
                path.unlink()

    corrected(small=small, on_round=lose).start(grid, small.initial(), num_rounds=20)
    assert "begin a new job" in caplog.text


def test_only_one_vector_and_two_numbers_travel_up(tmp_path):
    replies = []
    grid = make_grid(tmp_path, lambda agent, reply: replies.append(reply) or reply)
    corrected().start(grid, initial(), num_rounds=4)
    found = {name: set(record) for name, record in replies[-1].content.items()}
    assert found["change"] == {"params"}
    assert found["metrics"] <= {"score", "agreement"}


def refusal(tmp_path, small, turn):
    """What an agent answers to an order with a correction."""
    replies = []
    grid = small.make_grid(tmp_path, lambda _, reply: replies.append(reply) or reply, turn)
    corrected(small=small).start(grid, small.initial(), num_rounds=1)
    return replies[0].error.reason


def test_a_loop_of_ones_own_is_refused(tmp_path):
    reason = refusal(tmp_path, small_flower, lambda _: own_turn(lambda message, context: message))
    assert "use agent_turn or torch_turn, or leave correction out" in reason


def test_an_agent_that_hides_its_changes_refuses(tmp_path, small):
    reason = refusal(tmp_path, small, lambda agent: small.turn(agent, privacy=Privacy(clip=1.0)))
    assert "the cloud must leave correction out" in reason


def test_the_weights_must_be_on_the_change(tmp_path):
    with pytest.raises(ValueError, match="weighting='change'"):
        corrected(weighting="step").start(make_grid(tmp_path), initial(), num_rounds=1)
