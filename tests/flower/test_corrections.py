"""Corrections over Flower: the cloud keeps c and every c_k, agents keep nothing of them.

Agents have a linear model and `agent_turn`, or a network and `torch_turn`.
"""

# pyright: reportMissingImports=false
from dataclasses import replace

import numpy as np
import pytest
import small_flower
from flwr.app import Array, ArrayRecord, Message, RecordDict
from small_flower import AGENTS, initial, make_grid, make_strategy

from isfed import ISFedAvg, Memory, Score, Uniform, WithReplacement
from isfed.federation.safety import Privacy, Safety
from isfed.federation.variate_updates import TURNS, Correction
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
SAFETY = Safety(
    most_inclusion=1.0, largest_ratio=1e9, most_medians=np.inf
)  # draws as a simulation does


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


def mean_gap(strategy, unseen="mean"):
    """The largest difference between c and the mean of the c_k."""
    kept = strategy.job.state.estimator
    heard = kept.book[:, TURNS] > 0
    assert np.abs(kept.own).max() > 1e-3
    count = heard.sum() if unseen == "mean" else AGENTS
    return np.abs(kept.own[heard].sum(axis=0) / count - kept.centre).max()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.name} {a.agent_design}")
def test_agrees_with_the_run_in_one_process(tmp_path, small, algorithm):
    strategy = corrected(algorithm, small)
    result = strategy.start(small.make_grid(tmp_path), small.initial(), num_rounds=15)
    expected = small.in_process(15, strategy.algorithm)
    np.testing.assert_array_equal(small.params_of(result), expected)
    assert mean_gap(strategy, algorithm.memory.unseen) < 1e-13


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
    assert mean_gap(strategy) < 1e-13


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
    assert mean_gap(strategy) < 1e-13


def test_a_cloud_that_goes_back_is_answered_by_everybody(tmp_path, small):
    """Its checkpoint was lost and an old copy put in its place; agents keep nothing of c_k."""
    checkpoint, old = tmp_path / "cloud.npz", tmp_path / "old.npz"

    def copy(report, _):
        if report.round_index == 4:
            old.write_bytes(checkpoint.read_bytes())

    grid = small.make_grid(tmp_path)
    strategy = corrected(small=small, checkpoint=checkpoint, on_round=copy)
    strategy.start(grid, small.initial(), num_rounds=12)
    strategy._lock.close()  # type: ignore[union-attr]
    checkpoint.write_bytes(old.read_bytes())
    strategy = corrected(small=small, checkpoint=checkpoint)
    result = strategy.start(grid, small.initial(), num_rounds=20)
    answered = [m["answered"] for m in result.train_metrics_clientapp.values()]
    assert answered == [3] * 15  # rounds 6 to 20; 0 of 144 where agents kept c_k themselves
    assert mean_gap(strategy) < 1e-13


def test_an_agent_that_is_installed_anew_goes_on(tmp_path, small):
    grid = small.make_grid(tmp_path)

    def lose(report, _):
        if report.round_index == 9:
            for path in (tmp_path / "state").glob("agent-0-*.npz"):
                path.unlink()

    strategy = corrected(small=small, on_round=lose)
    result = strategy.start(grid, small.initial(), num_rounds=20)
    assert [m["answered"] for m in result.train_metrics_clientapp.values()] == [3] * 20
    assert (tmp_path / "state").glob("agent-0-*.npz")
    assert mean_gap(strategy) < 1e-13


def test_a_model_of_small_floats_is_remembered_as_the_cloud_reads_it(tmp_path, small):
    strategy = corrected(small=small)
    strategy.start(small.make_grid(tmp_path), small.initial("float32"), num_rounds=20)
    assert mean_gap(strategy) < 1e-13


def test_only_one_vector_and_two_numbers_travel_up(tmp_path):
    replies = []
    grid = make_grid(tmp_path, lambda agent, reply: replies.append(reply) or reply)
    corrected().start(grid, initial(), num_rounds=4)
    found = {name: set(record) for name, record in replies[-1].content.items()}
    assert found["change"] == {"params"}
    assert found["metrics"] <= {"score", "noise-share"}


def test_a_loop_of_ones_own_cannot_be_steered_but_what_is_new_can_be_estimated(tmp_path):
    """With "difference" the cloud alone remembers."""
    replies = []

    def loop(message, context):
        model = message.content["arrays"]["params"].numpy()
        target = float(context.node_config["partition-id"])
        trained = ArrayRecord({"params": Array(model + 0.1 * (target - model))})
        return Message(RecordDict({"arrays": trained}), reply_to=message)

    def run(algorithm):
        grid = make_grid(
            tmp_path, lambda _, reply: replies.append(reply) or reply, lambda _: own_turn(loop)
        )
        return corrected(algorithm, safety=Safety()).start(grid, initial(), num_rounds=80)

    with pytest.raises(RuntimeError, match="nobody's answer"):
        run(DRIFT)
    assert "use agent_turn or torch_turn" in replies[0].error.reason
    result = run(ALGORITHMS[1])
    # Plain Horvitz-Thompson moves around the mean of 0 to 4 for ever; here c_k are learned.
    np.testing.assert_allclose(result.arrays["params"].numpy(), 2.0, atol=0.02)


def test_an_agent_that_limits_what_it_tells_does_not_tell_how_many_examples_it_has(tmp_path, small):
    replies = []
    grid = small.make_grid(
        tmp_path,
        lambda _, reply: replies.append(reply) or reply,
        lambda agent: small.turn(agent, privacy=Privacy(clip=1.0)),
    )
    corrected(small=small).start(grid, small.initial(), num_rounds=2)
    told = [set(reply.content["metrics"]) for reply in replies]
    assert all("noise-share" not in names for names in told)


def test_the_weights_must_be_on_the_change(tmp_path):
    with pytest.raises(ValueError, match="weighting='change'"):
        corrected(weighting="step").start(make_grid(tmp_path), initial(), num_rounds=1)
