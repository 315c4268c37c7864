"""Flower's differential privacy takes a change for a model: it is recognised and refused."""

# pyright: reportMissingImports=false
import math
from itertools import pairwise

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy as flowers
from local_grid import LocalGrid

from isfed import PAPER, Federated, HorvitzThompson, ISFedAvg, LocalSteps, Poisson, Uniform
from isfed.federation.privacy_loss import NUM_LEVELS, epsilons, level_of
from isfed.federation.response_rates import Absences
from isfed.federation.safety import Privacy, Safety, ScoreRange
from isfed.flower import Strategy, agent_turn
from isfed.methods.private import ReleasedScores

AGENTS = 3
PROBLEM = PAPER.replace(num_agents=AGENTS).make(seed=2)


def make_grid(tmp_path, *, mods=(), **options):
    app = ClientApp()

    @app.train(mods=list(mods))
    def _(message, context):
        agent = context.node_config["partition-id"]
        turn = agent_turn(lambda _: PROBLEM.data.agent(agent), loss=PROBLEM.loss, **options)
        return turn(message, context)

    configs = [{"partition-id": k, "isfed-state": str(tmp_path / str(k))} for k in range(AGENTS)]
    return LocalGrid(app, configs)


UNIFORM = ISFedAvg(step_size=0.01, num_active=AGENTS, agents=Uniform())
INDEPENDENT = ISFedAvg(step_size=0.01, num_active=2, agents=Uniform(), agent_design=Poisson())
RANGE = ScoreRange(0.1, 10.0)


def released(**options):
    """Agents drawn by scores that they release with noise."""
    sampler = ReleasedScores(2, every=2, **{"noise": 20.0, "scores": RANGE, **options})
    return Federated(sampler, LocalSteps(0.01), HorvitzThompson())


def make_strategy(algorithm=None, **options):
    return Strategy(
        algorithm or ISFedAvg(step_size=0.01, num_active=AGENTS),
        num_agents=AGENTS,
        names=[f"agent{k}" for k in range(AGENTS)],
        time_limit=60.0,
        join_limit=0.0,
        fraction_evaluate=0.0,
        **options,
    )


def initial():
    return ArrayRecord({"params": Array(np.ones(PROBLEM.num_params))})


@pytest.mark.parametrize(
    "mod",
    [LocalDpMod(1.0, 1.0, 1.0, 1e-5), fixedclipping_mod, adaptiveclipping_mod],
    ids=["local", "fixed", "adaptive"],
)
def test_a_mod_of_flowers_cannot_reach_the_model(tmp_path, mod, caplog):
    strategy = make_strategy(safety=Safety(most_refusals=0))
    result = strategy.start(make_grid(tmp_path, mods=[mod]), initial(), num_rounds=2)
    assert [m["answered"] for m in result.train_metrics_clientapp.values()] == [0, 0]
    assert (result.arrays["params"].numpy() == 1.0).all()
    assert "takes it for a model" in caplog.text
    assert "use isfed's Privacy" in caplog.text


WRAPPERS = {
    "server, fixed": lambda s: flowers.DifferentialPrivacyServerSideFixedClipping(s, 1.0, 1.0, 3),
    "client, fixed": lambda s: flowers.DifferentialPrivacyClientSideFixedClipping(s, 1.0, 1.0, 3),
    "server, adaptive": lambda s: flowers.DifferentialPrivacyServerSideAdaptiveClipping(
        s, 1.0, 3, clipped_count_stddev=10.0
    ),
    "client, adaptive": lambda s: flowers.DifferentialPrivacyClientSideAdaptiveClipping(
        s, 1.0, 3, clipped_count_stddev=10.0
    ),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_of_flowers_is_refused_with_a_sentence(tmp_path, kind):
    inner = make_strategy()
    outer, grid = WRAPPERS[kind](inner), make_grid(tmp_path)

    def two_rounds(arrays):
        for number in (1, 2):
            messages = list(outer.configure_train(number, arrays, ConfigRecord(), grid))
            found, _ = outer.aggregate_train(number, grid.send_and_receive(messages))
            arrays = found or arrays

    with pytest.raises(ValueError, match=r"takes a change for a model.*Safety\(privacy=Privacy"):
        two_rounds(initial())
    assert inner.job is not None
    assert np.linalg.norm(inner.job.params - 1.0) < 1.0


def test_the_clouds_noise_reaches_the_model(tmp_path):
    """Steps clipped to nothing: what is left is noise of the stated size."""
    privacy = Privacy(clip=1e-9, noise=1e9)
    strategy = make_strategy(UNIFORM, safety=Safety(privacy=privacy))
    steps = []
    strategy.on_round = lambda report, params: steps.append(params)
    strategy.start(make_grid(tmp_path), initial(), num_rounds=30)
    moved = np.diff(steps, axis=0)
    expected = 1.0 / 3  # noise * clip / L
    error = expected / math.sqrt(2 * moved.size)
    assert moved.std() == pytest.approx(expected, abs=4 * error)


def test_an_agents_own_noise_is_the_same_when_asked_again(tmp_path):
    privacy = Privacy(clip=1.0, noise=1.0)
    changes = []
    for _ in range(2):  # the same job from its beginning: the cloud was killed
        strategy = make_strategy(seed=1)
        grid = make_grid(tmp_path, privacy=privacy)
        grid.spoil = lambda _, reply: changes.append(reply.content["change"]["params"]) or reply
        strategy._prepared(initial())
        assert strategy.job is not None
        strategy.job.name = "one"
        strategy.start(grid, initial(), num_rounds=1)
    first, again = changes[:AGENTS], changes[AGENTS:]
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(first, again, strict=True))
    assert len({a.data for a in first}) == AGENTS


def test_an_agent_whose_budget_is_spent_does_not_work(tmp_path):
    grid = make_grid(tmp_path, privacy=Privacy(clip=1.0, noise=1.0), reports_per_day=2)
    result = make_strategy().start(grid, initial(), num_rounds=4)
    assert [m["answered"] for m in result.train_metrics_clientapp.values()] == [3, 3, 0, 0]


def test_noise_needs_probabilities_that_tell_nothing():
    """The old score of an agent that is not drawn moves the weights of all others."""
    safety = Safety(privacy=Privacy(clip=1.0, noise=1.0))
    with pytest.raises(ValueError, match="sampler ByScore does not give: learned scores tell"):
        make_strategy(safety=safety)
    adjusted = Safety(absences=Absences.ADJUSTED, privacy=safety.privacy)
    with pytest.raises(ValueError, match="InverseResponse uses what each agent sent"):
        make_strategy(INDEPENDENT, safety=adjusted)


def test_a_cohort_of_fixed_size_has_no_epsilon_and_the_log_says_why(tmp_path, caplog):
    strategy = make_strategy(UNIFORM, safety=Safety(privacy=Privacy(clip=1.0, noise=1.0)))
    result = strategy.start(make_grid(tmp_path), initial(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["epsilon"] == -1.0
    assert "No epsilon is stated: in a cohort of fixed size" in caplog.text


def test_every_report_has_the_epsilon_of_every_agent(tmp_path, caplog):
    """After every round, by its privacy loss distribution, against a direct computation."""
    pytest.importorskip("dp_accounting")
    safety, reports = Safety(silent_rounds=0, privacy=Privacy(clip=1.0, noise=1.0)), []
    strategy = make_strategy(INDEPENDENT, safety=safety)
    strategy.on_round = lambda report, params: reports.append(report)
    result = strategy.start(make_grid(tmp_path), initial(), num_rounds=3)
    spent = np.zeros((1, NUM_LEVELS), np.int64)
    level = int(level_of(np.array([2 / AGENTS]), 2 / AGENTS)[0])
    for number, report in enumerate(reports, 1):
        spent[0, level] = number
        direct = epsilons(spent, {level: 1.0}, uniform=2 / AGENTS, delta=1e-5)[0]
        assert report.epsilons == pytest.approx([direct] * AGENTS)
        assert (
            result.train_metrics_clientapp[number]["epsilon"]
            == report.epsilon
            == max(report.epsilons)
        )
    assert f"epsilon {reports[-1].epsilon:.4g} so far" in caplog.text
    assert "Every round's report has the epsilon of every agent at delta=1e-05" in caplog.text


@pytest.mark.parametrize("algorithm", [INDEPENDENT, released()], ids=["uniform", "released"])
def test_a_cloud_that_goes_back_to_an_old_checkpoint_forgets_no_epsilon(tmp_path, algorithm):
    """Two rounds, two more, and these two again from a copy: the models of six were seen."""
    pytest.importorskip("dp_accounting")
    checkpoint, reports = tmp_path / "job.npz", []
    safety = Safety(silent_rounds=0, privacy=Privacy(clip=1.0, noise=1.0))

    def train(rounds):
        strategy = make_strategy(algorithm, safety=safety, checkpoint=checkpoint)
        strategy.on_round = lambda report, params: reports.append(report)
        grid = make_grid(tmp_path, score_noise=20.0, scores=RANGE)
        strategy.start(grid, initial(), num_rounds=rounds)
        assert strategy._lock
        strategy._lock.close()
        return strategy

    train(2)
    backup = checkpoint.read_bytes()
    train(4)
    checkpoint.write_bytes(backup)
    strategy = train(4)
    assert strategy.job
    state, sampler = strategy.job.state.estimator, strategy.method.sampler
    assert state.spent.sum(axis=1).tolist() == [6] * AGENTS
    # Released before rounds 0 and 2, and before round 2 again.
    scores = (sampler.multiplier, 3) if hasattr(sampler, "multiplier") else None
    direct = strategy.method.estimator.epsilons(state, 2, scores=scores)
    assert reports[-1].epsilons == pytest.approx(direct.tolist())
    assert (np.diff([report.epsilon for report in reports]) > 0.0).all()


def test_the_draws_of_private_runs_do_not_follow_from_the_seed(tmp_path):
    """Agents know the seed, and epsilon counts on their not knowing who else was drawn."""
    pytest.importorskip("dp_accounting")
    drawn = []
    for _ in range(2):
        strategy = make_strategy(
            INDEPENDENT, seed=3, safety=Safety(silent_rounds=0, privacy=Privacy(clip=1, noise=1.0))
        )
        strategy.on_round = lambda report, params: drawn.append(report.agents)
        strategy.start(make_grid(tmp_path), initial(), num_rounds=25)
    assert drawn[:25] != drawn[25:]  # equal by chance: less than 1e-20


def test_agents_elsewhere_release_their_scores_with_noise_of_their_own(tmp_path):
    pytest.importorskip("dp_accounting")
    safety = Safety(silent_rounds=0, privacy=Privacy(clip=1.0, noise=1.0, rounds=40))
    strategy, seen, reports = make_strategy(released(), safety=safety), [], []

    def remember(report, params):
        table = strategy.method.sampler.table(strategy.job.state.sampler, AGENTS)  # pyright: ignore[reportOptionalMemberAccess]
        seen.append(table.scores.copy())
        reports.append(report)

    strategy.on_round = remember
    strategy.start(make_grid(tmp_path, score_noise=20.0, scores=RANGE), initial(), num_rounds=40)
    assert sum(report.answered for report in reports) == sum(report.drawn for report in reports)
    renewed = np.array([(one != other).any() for one, other in pairwise(seen)])
    assert not renewed[::2].any()  # every two rounds
    # Nearly all noised scores are at an end of their range. That one release equals the last, or
    # that nobody was drawn in between, is likely; that it is so 19 times is not (below 1e-6).
    assert renewed[1::2].any()
    assert all((scores >= 0.1).all() and (scores <= 10.0).all() for scores in seen)
    assert (np.diff([report.epsilon for report in reports]) > 0.0).all()
    more = reports[-1].epsilon
    alone = strategy.method.estimator.epsilons(strategy.job.state.estimator, 2).max()  # pyright: ignore[reportOptionalMemberAccess]
    assert alone < more <= alone + 20 * RANGE.epsilon(20.0) + 0.01


def test_an_agent_releases_no_score_with_less_noise_than_its_own(tmp_path, caplog):
    safety = Safety(silent_rounds=0)
    strategy = make_strategy(released(noise=5.0), safety=safety)
    grid = make_grid(tmp_path, score_noise=20.0, scores=RANGE)
    strategy.start(grid, initial(), num_rounds=1)
    assert "a score with noise 5, and this agent adds 20" in caplog.text
    scores = strategy.method.sampler.table(strategy.job.state.sampler, AGENTS).scores  # pyright: ignore[reportOptionalMemberAccess]
    assert (scores == -1.0).all()  # drawn as if nothing were known


def test_a_score_that_is_asked_for_again_has_the_same_noise(tmp_path):
    """In whatever job and round, as long as the model and the range are the same."""
    scores, wide = [], ScoreRange(1e-9, 1e9)  # so wide that no noise reaches an end of it
    for seed in range(2):
        method = released(noise=0.1, scores=wide)
        strategy = make_strategy(method, safety=Safety(silent_rounds=0), seed=seed)
        grid = make_grid(tmp_path)
        strategy.start(grid, initial(), num_rounds=1)
        table = strategy.method.sampler.table(strategy.job.state.sampler, AGENTS)  # pyright: ignore[reportOptionalMemberAccess]
        scores.append(table.scores.tolist())
    assert scores[0] == scores[1]
    assert len(set(scores[0])) == AGENTS


def test_an_agent_shows_what_its_scores_have_cost(tmp_path, caplog):
    safety = Safety(scores=RANGE)
    grid = make_grid(tmp_path, score_noise=2.0, scores=RANGE, reports_per_day=5)
    make_strategy(safety=safety).start(grid, initial(), num_rounds=2)
    each = RANGE.epsilon(2.0)
    assert f"epsilon {each:.3g}; 2 of 5 reports today, 2 in all" in caplog.text
    assert f"add up to at most {2 * each:.3g}" in caplog.text
