"""`isfed reproduce systems` on small problems: every method, what it costs, and where it rests."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from small_federations import after_steps, fixed_point, quadratics, regression

from isfed import (
    SCAFFOLD,
    AgnosticFL,
    FedAsync,
    FedAvg,
    FedProx,
    HierFAVG,
    ISFedAvg,
    LocalGD,
    LocalSGD,
    MomentumSGD,
    QFedAvg,
    RestartedSGD,
    load_results,
)
from isfed.report.methods_table import TABLE_1
from isfed.report.systems_report import (
    AXES,
    FAMILIES,
    REFERENCES,
    curve,
    systems_figures,
    systems_table,
)
from isfed.studies import Workers, fixed_points
from isfed.studies.experiment_config import read_study
from isfed.studies.fixed_points import accelerated, resting_distances, without_chance
from isfed.studies.name_registry import METHODS
from isfed.studies.study_engine import run_study

STEP = 0.05
HALF, FIVE = {"num_active": 8}, {"num_active": 5}  # candidates of FedCS and Hybrid-FL
SMALL = {
    "regression": {
        "source": {"num_agents": 12, "num_examples": 10, "batch_size": [1, 3]},
        "values": {"num_active": 4},
        "own": {"FedCS": HALF, "Hybrid-FL": HALF, "FedAsync, event queue": {"in_flight": 4}},
    },
    "synthetic(1,1)": {
        "source": {"num_agents": 5, "num_features": 3, "num_classes": 3, "most_examples": 60},
        "rounds": 6,
        "repetitions": 2, "values": {"num_active": 3, "step_size": 0.02},
        "own": {"FedCS": FIVE, "Hybrid-FL": FIVE, "FedAsync, event queue": {"in_flight": 3}},
    },
}  # fmt: skip


def small(**changes):
    problem = {title: one | changes for title, one in SMALL.items()}
    return read_study("systems", changes={"problem": problem}, rounds=12, repetitions=2)


def test_acceleration_finds_the_fixed_point_of_a_linear_map():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((20, 20))
    values = np.linspace(0.1, 0.999, 20)
    basis, _ = np.linalg.qr(root)
    matrix, constant = (basis * values) @ basis.T, rng.standard_normal(20)
    exact = np.linalg.solve(np.eye(20) - matrix, constant)
    found = accelerated(lambda x: matrix @ x + constant, np.zeros(20), most=400)
    assert found is not None
    np.testing.assert_allclose(found, exact, rtol=1e-4)
    assert accelerated(lambda x: np.full(2, np.nan), np.ones(2), most=5) is None


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "local GD", "restarted", "HierFAVG", "IS"])
def test_rest_is_the_solution_of_the_linear_system(name):
    """Where the random method goes on average: local_steps of 1 to 4, batches of 2."""
    problem = regression(local_steps=np.array([1, 4, 2, 3]))
    parts, steps = quadratics(problem), (1, 4, 2, 3)
    uniform = np.full(4, 0.25)

    def maps(counts, step_sizes=(STEP,) * 4, **options):
        return [
            after_steps(h, b, step_size=s, steps=n, **options)
            for (h, b), n, s in zip(parts, counts, step_sizes, strict=True)
        ]

    some = {"step_size": STEP, "num_active": 2}
    method, expected = {
        "FedAvg": (FedAvg(**some), fixed_point(maps(steps), uniform)),
        "IS": (ISFedAvg(**some), fixed_point(maps(steps, [STEP / n for n in steps]), uniform)),
        "FedProx": (FedProx(prox=0.7, **some), fixed_point(maps(steps, prox=0.7), uniform)),
        "local GD": (LocalGD(step_size=STEP, steps=5), fixed_point(maps((5,) * 4), uniform)),
        "restarted": (RestartedSGD(step_size=STEP, steps=steps), fixed_point(maps(steps), uniform)),
        "HierFAVG": (
            HierFAVG(step_size=STEP, steps=3, edge_rounds=2, edges=[[0], [1], [2], [3]]),
            fixed_point(maps((6,) * 4), uniform),
        ),
    }[name]
    found = fixed_points.rest(problem, without_chance(method, problem))
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_stragglers_rest_where_their_mean_round_does():
    """Two of four are slow, each with one half: 1 to E_k - 1 steps, all as likely."""
    problem = regression(local_steps=np.array([1, 4, 2, 3]))
    maps = []
    for (h, b), steps in zip(quadratics(problem), (1, 4, 2, 3), strict=True):
        ends = [after_steps(h, b, step_size=STEP, steps=n, prox=0.7) for n in range(1, 5)]
        slow = ends[: max(1, steps - 1)]
        maps.append(
            tuple(
                0.5 * ends[steps - 1][part] + 0.5 * np.mean([end[part] for end in slow], axis=0)
                for part in (0, 1)
            )
        )
    expected = fixed_point(maps, np.full(4, 0.25))
    method = FedProx(prox=0.7, step_size=STEP, num_active=4, stragglers=0.5)
    found = fixed_points.rest(problem, without_chance(method, problem))
    assert found is not None
    np.testing.assert_allclose(found, expected, atol=1e-6)
    without = fixed_points.rest(problem, without_chance(replace(method, stragglers=0.0), problem))
    assert np.linalg.norm(found - without) > 1e-3
    dropped = replace(method, keep_stragglers=False)
    np.testing.assert_array_equal(
        fixed_points.rest(problem, without_chance(dropped, problem)), without
    )


def test_other_objectives_rest_where_theirs_is_least():
    """q-FedAvg with one full-batch step: the gradient of sum P_k^2 / 2 vanishes there."""
    problem = regression(local_steps=1)
    method = QFedAvg(power=1.0, step_size=STEP, num_active=2)
    model = fixed_points.rest(problem, without_chance(method, problem))
    assert model is not None
    risks = [np.mean(problem.loss.values(model, *problem.data.agent(k))) for k in range(4)]
    total = sum(r * (h @ model - b) for r, (h, b) in zip(risks, quadratics(problem), strict=True))
    np.testing.assert_allclose(total, 0.0, atol=1e-5)
    found = resting_distances(
        problem, {"q": method, "m": MomentumSGD(step_size=0.01, momentum=0.5)}
    )
    assert found["q"][0] is not None
    assert found["m"] == (None, fixed_points.AT_OPTIMUM)  # one step between two averages


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_where_methods_rest_is_measured_from_what_they_aim_at(how):
    problem = regression(local_steps=np.array([1, 4, 2, 3]))
    counts = problem.data.num_examples if how == "size" else np.ones(4)
    maps = [after_steps(h, b, step_size=STEP, steps=2) for h, b in quadratics(problem)]
    one = [after_steps(h, b, step_size=STEP, steps=1) for h, b in quadratics(problem)]
    shares = counts / counts.sum()
    apart = fixed_point(maps, shares) - fixed_point(one, shares)  # the latter is w^o
    methods = {
        "two steps": LocalSGD(step_size=STEP, steps=2, client_weights=how),
        "async": FedAsync(step_size=STEP, prox=0.0, client_weights=how),
        "scaffold": SCAFFOLD(step_size=STEP, num_active=2, client_weights=how),
    }
    found = resting_distances(problem, methods)
    assert found["two steps"][0] == pytest.approx(10 * np.log10(apart @ apart), abs=1e-4)
    assert found["scaffold"] == (None, fixed_points.AT_OPTIMUM)
    unequal = [
        after_steps(h, b, step_size=STEP, steps=n)
        for (h, b), n in zip(quadratics(problem), (1, 4, 2, 3), strict=True)
    ]
    apart = fixed_point(unequal, shares) - fixed_point(one, shares)
    assert found["async"][0] == pytest.approx(10 * np.log10(apart @ apart), abs=1e-4)


def test_every_method_of_table_1_and_every_selector_takes_part():
    methods = read_study("systems").algorithms
    kinds = {METHODS.name_of(m) or type(m).__name__ for m in methods.values()}
    same = {"KAVG": "LocalSGD", "PeriodicAveraging": "LocalSGD",
            "CooperativeSGD": "DecentralisedSGD",
            "FedAvg": "ISFedAvg",
            "DynamicFedAvg": "ISFedAvg"}  # fmt: skip
    for row in TABLE_1:
        for name in row[0].replace(" and its special cases", "").split(", "):
            assert name in kinds or same[name] in kinds
    assert {"FedCS", "HybridFL", "FOLB", "AgnosticFL", "QFedAvg", "QFedSGD"} <= kinds
    names = [*itertools.chain(*FAMILIES.values()), *REFERENCES]
    assert sorted(names) == sorted(methods)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(fixed_points, "LONG_ROUNDS", 20)
    folder = tmp_path_factory.mktemp("systems")
    results = run_study(small(), folder, workers=Workers())
    yield results
    patch.undo()


def test_the_folder_has_costs_and_levels_of_every_method(finished):
    rows = {a.name: a for a in finished.algorithms}
    assert len(rows) == 2 * len(small().algorithms) - 1  # no MOCHA for softmax
    fedavg = rows["regression: FedAvg"]
    costs = fedavg.summary["costs"]
    assert costs["bytes_up"]["mean"] == 4 * (12 * 4 * 2 + 3 * 12)
    assert costs["gradients"]["mean"] > 0
    assert costs["seconds"]["mean"] > 0
    for cost in AXES:
        x, y = curve(fedavg, cost)
        assert x.shape == y.shape == (12,)
        assert (np.diff(x) > 0).all()
    everybody = rows["regression: local SGD"].summary["costs"]
    assert everybody["bytes_up"]["mean"] == 4 * (12 * 12 * 2 + 3 * 12)
    again = load_results(finished.path)
    assert again["synthetic(1,1): FOLB"].summary["problem"] == "synthetic(1,1)"


def test_the_figures_and_tables_are_drawn(finished):
    paths = systems_figures(finished)
    assert {p.name for p in paths} == {
        f"systems-{p}.{k}" for p in ("regression", "synthetic") for k in ("png", "svg")
    }
    table = systems_table(finished, "regression")
    assert len(table.rows) == len(small().algorithms)


def test_a_finished_study_is_not_run_again(finished):
    before = (finished.path / "summary.json").read_bytes()
    again = run_study(small(), finished.path, resume=True, workers=Workers())
    assert (again.path / "summary.json").read_bytes() == before


class StopAtRest:
    """A progress that presses Ctrl-C after some fixed points of the first problem are known."""

    def __init__(self, after):
        self.left, self.resting = after, False

    def begin(self, name, work, done):
        self.resting = "where each rests" in name

    def advance(self, work):
        self.left -= self.resting
        if self.left == 0:
            raise KeyboardInterrupt


def test_fixed_points_are_kept_and_a_resume_goes_on_after_them(tmp_path, monkeypatch):
    some = ("FedAvg", "local GD", "FedProx", "agnostic FL")
    study = small(without=[name for name in small().algorithms if name not in some])
    monkeypatch.setattr(fixed_points, "LONG_ROUNDS", 20)
    whole = run_study(study, tmp_path / "whole", workers=Workers())
    calls = []
    for name in ("_computed", "_after_long"):
        own = getattr(fixed_points, name)
        monkeypatch.setattr(
            fixed_points, name, lambda p, a, own=own: (calls.append(repr(a)), own(p, a))[1]
        )
    with pytest.raises(KeyboardInterrupt):
        run_study(study, tmp_path / "cut", workers=Workers(), progress=StopAtRest(3))
    before = list(calls)
    assert len(before) == 3
    calls.clear()
    again = run_study(study, tmp_path / "cut", resume=True, workers=Workers())
    assert len(calls) == 1 + 4
    assert not set(before) & set(calls)  # the step sizes of the two problems tell them apart
    assert (again.path / "summary.json").read_bytes() == (whole.path / "summary.json").read_bytes()
    assert not list(again.path.glob("**/*.note.npz"))


def test_agnostic_learning_has_a_long_run():
    problem = regression()
    found = resting_distances(problem, {"a": AgnosticFL(step_size=0.02, mixture_step=0.02)})
    assert found["a"][1] == fixed_points.LONG
