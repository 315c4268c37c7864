"""docs/extend.md runs from top to bottom, and what it shows is right."""

import sys

import numpy as np
import pytest
from page_blocks import run_page

from isfed import inclusion_probabilities, load_results
from isfed.base.import_by_name import import_named
from isfed.federation.compiled_agents import CompiledAgents
from isfed.federation.messages import Facts, Updates
from isfed.studies.name_registry import DESIGNS, METHODS, POLICIES


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the page defines, after all its blocks have run in order."""
    known = [(registry, dict(registry._known)) for registry in (METHODS, DESIGNS, POLICIES)]
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("extend")
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        sys.modules.pop("my_sampler", None)  # tests of the registry have one of this name, too
        yield run_page("docs/extend.md", folder) | {"folder": folder}
    sys.modules.pop("my_sampler", None)
    for registry, before in known:  # the names that the page gives are its own
        registry._known = before


def test_the_loss_is_learned_and_has_no_msd(page):
    class Quiet(page["Distance"]):
        every = 400

    algorithm = page["ISFedAvg"](step_size=0.2, num_active=4)
    history = page["simulate"](page["counts"], algorithm, rounds=400, measure=Quiet())
    first, last = history.measured["distance"][0]
    assert last < 0.25 * first
    with pytest.raises(ValueError, match="this run has no msd: this problem was made with optim"):
        history.steady()


def test_the_design_keeps_its_inclusion_probabilities(page):
    inclusion = np.array([0.2, 0.7, 0.8, 0.5, 0.4, 0.4])
    draws, stream = 20_000, page["Stream"](1)
    counts = np.zeros(6)
    for _ in range(draws):
        units = page["Pivotal"]().draw(inclusion, stream)
        assert len(units) == 3
        counts[units] += 1
    stderr = np.sqrt(inclusion * (1 - inclusion) / draws)
    assert (np.abs(counts / draws - inclusion) < 4 * stderr).all()


def test_the_policy_learns_what_it_says(page):
    from isfed.sampling.policies import Table

    table = Table(3, page["Smoothed"](), page["Deville"]())
    table.refresh(np.array([1]), np.array([4.0]))
    table.refresh(np.array([1]), np.array([2.0]))
    assert table.scores.tolist() == [-1.0, 3.0, -1.0]


def test_a_policy_that_returns_nonsense_is_named(page):
    from isfed.sampling.policies import Table

    class Wrong(page["Smoothed"]):
        def update(self, known, found):
            return -found

    table = Table(3, Wrong(), page["Deville"]())
    with pytest.raises(ValueError, match="expected 1 finite scores >= 0"):
        table.refresh(np.array([1]), np.array([4.0]))


def test_the_server_cuts_long_steps(page):
    server = page["Calm"](most=1.5)
    state, params = server.init(np.zeros(2), 4.0), np.zeros(2)
    for step, cut in [((3.0, 4.0), 1.0), ((30.0, 40.0), 7.5 / 50.0), ((0.0, 0.0), 1.0)]:
        moved, state = server.move(state, params, np.array(step))
        np.testing.assert_allclose(moved - params, cut * np.array(step), rtol=1e-12)
        params = moved
    assert state.total[0] == 55.0
    plain = page["simulate"](page["problem"], page["method"], rounds=2000, repetitions=2)
    assert not np.array_equal(page["calm"].params, plain.params)
    np.testing.assert_array_equal(page["calm"].uploads, plain.uploads)
    assert page["both"].msd[:, -1].mean() < page["calm"].msd[:, -1].mean()


def test_the_algorithm_counts_the_losses_it_asks_for(page):
    algorithm = page["WorstCandidates"](step_size=0.01, num_active=5, candidates=12)
    agents, objects = (
        page["simulate"](page["problem"], algorithm, rounds=20, engine=engine)
        for engine in ("agents", "objects")
    )
    np.testing.assert_array_equal(agents.params, objects.params)
    assert agents.ledger().forwards == 20 * 12 * 20
    assert agents.uploads[0] == 20 * 5


def test_the_source_has_an_agent_for_every_site(page):
    assert page["mine"].num_agents == 3
    np.testing.assert_allclose(page["mine"].optimum, [0.0, 2.0], atol=0.01)


def test_names_of_ones_own_stand_in_a_configuration(page):
    results = page["results"]
    assert [a.name for a in results.algorithms] == ["FedAvg", "WorstCandidates", "ISFedAvg, memory"]
    assert results.config["algorithm"][1]["candidates"] == 12
    assert results.config["algorithm"][2]["agent_design"] == "pivotal"
    algorithm = page["WorstCandidates"](step_size=0.01, num_active=5, candidates=12)
    history = page["simulate"](page["problem"], algorithm, rounds=60, repetitions=2)
    np.testing.assert_array_equal(results["WorstCandidates"].msd, history.msd.mean(axis=0))


def test_the_command_runs_a_policy_that_a_file_names(page):
    results = load_results(page["folder"] / "runs" / "mine")
    policy = results.config["algorithm"][1]["agents"]
    assert policy["policy"] == "my_sampler:Smoothed"
    assert policy["keep"] == 0.8
    algorithm = page["ISFedAvg"](
        step_size=0.01, num_active=5, agents=import_named("my_sampler:Smoothed")(keep=0.8)
    )
    history = page["simulate"](page["problem"], algorithm, rounds=200, repetitions=5)
    np.testing.assert_array_equal(results["smoothed"].msd, history.msd.mean(axis=0))


def test_the_sampler_draws_by_the_mean_length_of_the_changes(page):
    problem, method = page["problem"], page["lengths"]
    agents = CompiledAgents(problem, method.rules(30), seed=0, repetition=0)
    state, mean = method.start(agents, np.zeros(problem.num_params)), np.ones(30)
    for i in range(12):
        wanted = inclusion_probabilities(mean, 5, floor=0.2)
        state, info = method.step(state, agents, i)
        who = info.cohort.agents
        np.testing.assert_allclose(info.cohort.prob, wanted[who] / 5)
        mean[who] = 0.5 * mean[who] + 0.5 * np.linalg.norm(info.updates.change, axis=1)
        np.testing.assert_allclose(state.sampler.mean, mean)


def test_the_estimator_cuts_what_is_longer_than_the_median(page):
    change = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 100.0]])
    updates = Updates(slice(None), change, np.zeros(3), np.zeros((3, 4)), np.zeros((3, 0)))
    facts = Facts(3, 2, 2, None, np.ones(3), np.ones(3), np.ones(3))
    step, _, _ = page["Clipped"]().combine((), None, updates, facts)
    np.testing.assert_allclose(step, np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 5.0]]).mean(axis=0))
