"""Settings in which one method must be another, on the same draws."""

import itertools
from typing import Any

import numpy as np
import pytest
from small_federations import identical_agents, quadratics, regression

from isfed import (
    FOLB,
    KAVG,
    AdaptiveTau,
    AgnosticFL,
    CooperativeSGD,
    DecentralisedSGD,
    DynamicFedAvg,
    ElasticAveraging,
    FedAsync,
    FedAvg,
    FedAvgScheme,
    FedCS,
    FederatedData,
    FedProx,
    FullySynchronousSGD,
    HartleyRao,
    HierFAVG,
    HybridFL,
    ISFedAvg,
    LeastSquares,
    LocalGD,
    LocalSGD,
    MomentumSGD,
    PeriodicAveraging,
    Problem,
    QFedAvg,
    QFedSGD,
    RestartedSGD,
    StichSGD,
    Uniform,
    WithReplacement,
    simulate,
)

STEP: dict[str, Any] = {"step_size": 0.02}
SOME: dict[str, Any] = {**STEP, "num_active": 2}
SIZE: dict[str, Any] = {"client_weights": "size"}


def run(algorithm, problem=None, *, rounds=40, engine: Any = "agents"):
    problem = regression() if problem is None else problem
    history = simulate(problem, algorithm, rounds=rounds, seed=9, engine=engine)
    return history.params[0]


def groups(*sizes):
    ends = np.cumsum([0, *sizes])
    return [list(range(a, b)) for a, b in itertools.pairwise(ends)]


FULL: dict[str, Any] = {"full_batch": True}
PAIRS = {
    "FedProx without prox = FedAvg": (FedProx(prox=0.0, **SOME), FedAvg(**SOME)),
    "q-FedAvg with q = 0 = FedAvg": (QFedAvg(power=0.0, **SOME), FedAvg(**SOME)),
    "scheme II = FedAvg for equal weights": (FedAvgScheme(scheme="II", **SOME), FedAvg(**SOME)),
    "scheme II = transformed II for equal weights": (
        FedAvgScheme(scheme="II", **SOME), FedAvgScheme(scheme="transformed-II", **SOME),
    ),
    "FedCS without a deadline = FedAvg": (FedCS(**SOME), FedAvg(**SOME)),
    "FedCS without a deadline = FedAvg by size": (
        FedCS(**SOME, **SIZE), FedProx(prox=0.0, **SOME, **SIZE),
    ),
    "Hybrid-FL without uploads = FedCS": (
        HybridFL(deadline=1.0, permit=0.0, **SOME, **SIZE), FedCS(deadline=1.0, **SOME, **SIZE),
    ),
    "FedAvg by size = FedProx without prox by size": (
        FedAvg(client_weights="size", **SOME), FedProx(prox=0.0, **SOME, **SIZE),
    ),
    "q-FedAvg with q = 0 = FedAvg by size": (
        QFedAvg(power=0.0, **SOME, **SIZE), FedAvg(client_weights="size", **SOME),
    ),
    "Dynamic FedAvg by size for one agent a round = Dynamic FedAvg": (
        DynamicFedAvg(step_size=0.02, num_active=1, client_weights="size"),
        DynamicFedAvg(step_size=0.02, num_active=1),
    ),
    "ISFedAvg uniform = Dynamic FedAvg": (
        ISFedAvg(
            agents=Uniform(), examples=Uniform(), agent_design=HartleyRao(),
            example_design=HartleyRao(), **SOME,
        ),
        DynamicFedAvg(**SOME),
    ),
    "Hybrid-FL without uploads = FedCS, uniform": (
        HybridFL(deadline=1.0, permit=0.0, **SOME), FedCS(deadline=1.0, **SOME),
    ),
    "scheme II by size for everybody = local SGD by size": (
        FedAvgScheme(scheme="II", step_size=0.02, num_active=4, local_steps=3, **SIZE),
        LocalSGD(steps=3, **STEP, **SIZE),
    ),
    "K-AVG = local SGD": (KAVG(steps=3, **STEP), LocalSGD(steps=3, **STEP)),
    "HierFAVG with one edge round = local SGD by size": (
        HierFAVG(steps=3, edges=groups(1, 3), **STEP, **SIZE), LocalSGD(steps=3, **STEP, **SIZE),
    ),
    "HierFAVG, singleton edges = local GD with tau_1 tau_2 steps": (
        HierFAVG(steps=2, edge_rounds=3, edges=groups(1, 1, 1, 1), **STEP, **FULL),
        LocalGD(steps=6, **STEP),
    ),
    "restarted SGD = local SGD": (RestartedSGD(steps=3, **STEP), LocalSGD(steps=3, **STEP)),
    "restarted SGD, equal I_k = local SGD": (
        RestartedSGD(steps=(3, 3, 3, 3), **STEP), LocalSGD(steps=3, **STEP),
    ),
    "periodic averaging = local SGD": (
        PeriodicAveraging(steps=3, **STEP), LocalSGD(steps=3, **STEP),
    ),
    "fully synchronous SGD = local SGD with one step": (
        FullySynchronousSGD(**STEP), LocalSGD(steps=1, **STEP),
    ),
    "fully synchronous SGD by size = local SGD by size with one step": (
        FullySynchronousSGD(**STEP, **SIZE), LocalSGD(steps=1, **STEP, **SIZE),
    ),
    "cooperative SGD with J as a matrix = without, by size": (
        CooperativeSGD(steps=3, mixing=lambda m: np.full((m, m), 1.0 / m), **STEP, **SIZE),
        PeriodicAveraging(steps=3, **STEP, **SIZE),
    ),
    "cooperative SGD with J as a matrix = without": (
        CooperativeSGD(steps=3, mixing=lambda m: np.full((m, m), 1.0 / m), **STEP),
        PeriodicAveraging(steps=3, **STEP),
    ),
    "momentum 0 = local SGD": (
        MomentumSGD(momentum=0.0, steps=3, **STEP), LocalSGD(steps=3, **STEP),
    ),
    "local SGD with full batches = local GD": (
        LocalSGD(steps=3, **STEP, **FULL), LocalGD(steps=3, **STEP),
    ),
    "adaptive tau, fixed = local GD by size": (
        AdaptiveTau(steps=3, adapt=False, budget=1e9, **STEP, **FULL, **SIZE),
        LocalGD(steps=3, **STEP, **SIZE),
    ),
    "agnostic without a mixture step = local GD by size": (
        AgnosticFL(mixture_step=0.0, **STEP, **SIZE), LocalGD(steps=1, **STEP, **SIZE),
    ),
    "q-FedSGD with q = 0 = gradient descent": (
        QFedSGD(power=0.0, step_size=0.02, num_active=4), LocalGD(steps=1, **STEP),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_one_method_is_another(name):
    one, other = PAIRS[name]
    if isinstance(one, AgnosticFL):  # it puts out the mean of all models
        mean = np.mean([run(other, rounds=i) for i in range(1, 11)], axis=0)
        np.testing.assert_allclose(run(one, rounds=10), mean, rtol=1e-12)
        return
    engine = "auto" if name.endswith("= FedAvg") else "agents"  # the fused kernel
    np.testing.assert_allclose(run(one), run(other, engine=engine), rtol=1e-12, atol=1e-15)


def test_one_step_of_dynamic_fedavg_is_fedavg_on_the_same_draws():
    """Of all examples, which both then use; a batch of one is the same draw with or without."""
    problem = regression(local_steps=1, batch_size=1)
    fair = ISFedAvg(
        agents=Uniform(), examples=Uniform(), agent_design=HartleyRao(),
        example_design=WithReplacement(), divide_by_steps=True, **SOME,
    )  # fmt: skip
    np.testing.assert_array_equal(run(fair, problem), run(FedAvg(**SOME), problem))


def test_one_edge_is_a_cloud_of_its_own():
    """HierFAVG with one edge: every edge round is a round of FedAvg with everybody, by size."""
    one = HierFAVG(steps=3, edge_rounds=4, edges=1, **STEP, **SIZE, **FULL)
    other = LocalGD(steps=3, **STEP, **SIZE)
    np.testing.assert_allclose(run(one, rounds=5), run(other, rounds=20), rtol=1e-12)


def test_folb_with_identical_gradients_is_fedprox():
    problem = identical_agents()
    for how in ({}, SIZE):
        one = run(FOLB(prox=0.5, **SOME, **how), problem, rounds=20)
        other = run(FedProx(prox=0.5, **SOME, **how), problem, rounds=20)
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_fedasync_of_one_agent_with_fresh_models_is_sgd():
    problem = regression(sizes=(7,), local_steps=3)
    for how in ({"max_age": 0}, {"in_flight": 1}):
        one = FedAsync(mixing=1.0, staleness="constant", prox=0.0, **how, **STEP)
        other = FedAvg(step_size=0.02, num_active=1)
        np.testing.assert_allclose(run(one, problem), run(other, problem), rtol=1e-12)


def test_local_sgd_with_one_step_is_minibatch_sgd_on_the_same_draws():
    """The mean of the agents' gradients at the same model: agents with one step of a shared one."""
    problem = regression(local_steps=1)
    np.testing.assert_allclose(
        run(LocalSGD(steps=1, **STEP), problem),
        run(FedAvg(step_size=0.02, num_active=4), problem),
        rtol=1e-12,
    )


@pytest.mark.parametrize("how", ["uniform", "size"])
def test_local_gd_with_one_step_is_gradient_descent_by_the_letter(how: Any):
    problem = regression()
    sizes = problem.data.num_examples
    weights = sizes / sizes.sum() if how == "size" else np.full(4, 0.25)
    params = np.zeros(3)
    for _ in range(30):
        gradients = [h @ params - b for h, b in quadratics(problem)]
        params = params - 0.02 * weights @ np.array(gradients)
    found = run(LocalGD(client_weights=how, **STEP), problem, rounds=30)
    np.testing.assert_allclose(found, params, rtol=1e-12)


def test_momentum_with_one_step_is_central_momentum():
    for nesterov in (False, True):
        problem = regression()
        params, velocity = np.zeros(3), np.zeros(3)

        for _ in range(30):
            gradient = np.mean([h @ params - b for h, b in quadratics(problem)], axis=0)
            velocity = 0.9 * velocity + gradient
            params = params - 0.01 * (gradient + 0.9 * velocity if nesterov else velocity)
        method = MomentumSGD(step_size=0.01, momentum=0.9, nesterov=nesterov, full_batch=True)
        np.testing.assert_allclose(run(method, problem, rounds=30), params, rtol=1e-12)


def test_the_mean_of_cooperative_sgd_moves_by_the_gradients_alone():
    """With one local step from equal models the mean moves by eta sum g / (m + v) for any W."""
    problem = regression()

    total = sum(-b for _, b in quadratics(problem))  # at w = 0
    for method, count in (
        (ElasticAveraging(step_size=0.02, full_batch=True), 5),
        (ElasticAveraging(step_size=0.02, pull=0.1, full_batch=True), 5),
        (CooperativeSGD(step_size=0.02, full_batch=True), 4),
    ):
        np.testing.assert_allclose(
            run(method, problem, rounds=1), -0.02 * total / count, rtol=1e-12
        )
    sizes = problem.data.num_examples
    total = sum(
        -4 * c * b for c, (_, b) in zip(sizes / sizes.sum(), quadratics(problem), strict=True)
    )
    for method, count in (
        (ElasticAveraging(step_size=0.02, full_batch=True, **SIZE), 5),
        (DecentralisedSGD(step_size=0.02, full_batch=True, **SIZE), 4),
    ):
        np.testing.assert_allclose(
            run(method, problem, rounds=1), -0.02 * total / count, rtol=1e-12
        )


def test_decentralised_agents_by_size_go_to_the_optimum_of_all_rows():
    """The nearer, the smaller the step: the ring leaves a distance of its order."""
    problem = regression()
    data = problem.data
    weighted = FederatedData(data.features, data.targets, data.offsets, data.num_examples)
    optimum = Problem(weighted, problem.loss).optimum
    far = [
        np.linalg.norm(
            run(DecentralisedSGD(step_size=s, full_batch=True, **SIZE), problem, rounds=n) - optimum
        )
        for s, n in ((0.02, 2000), (0.002, 20000))
    ]
    assert far[1] < 0.2 * far[0] < 0.2 * np.linalg.norm(problem.optimum - optimum)


@pytest.mark.parametrize("auxiliary", [0, 1, 2])
def test_cooperative_sgd_by_the_letter(auxiliary):
    """X <- (X - eta G) W for a random W; the mean moves by eta sum g / (m + v) whatever W is."""
    problem, size = regression(), 4 + auxiliary
    rng = np.random.default_rng(auxiliary)
    shares = rng.dirichlet(np.ones(5))
    orders = [rng.permutation(size) for _ in range(5)]
    matrix = np.sum([s * np.eye(size)[o] for s, o in zip(shares, orders, strict=True)], axis=0)
    matrix = (matrix + matrix.T) / 2.0  # symmetric and doubly stochastic
    models, parts = np.zeros((size, 3)), quadratics(problem)
    method = CooperativeSGD(
        step_size=0.02, steps=2, mixing=lambda _: matrix, auxiliary=auxiliary, full_batch=True
    )
    for rounds in range(1, 6):
        total = np.zeros(3)
        for _ in range(2):
            gradients = np.array([h @ x - b for x, (h, b) in zip(models, parts, strict=False)])
            models[:4] -= 0.02 * gradients
            total += gradients.sum(axis=0)
        before = models.mean(axis=0) + 0.02 * total / size
        models = matrix @ models
        np.testing.assert_allclose(models.mean(axis=0), before - 0.02 * total / size, rtol=1e-12)
        found = run(method, problem, rounds=rounds)
        np.testing.assert_allclose(found, models.mean(axis=0), rtol=1e-12)


def test_stich_by_the_letter():
    problem = regression()

    parts = quadratics(problem)
    shift, strong, steps = 50.0, 1.0, 3
    models = np.zeros((4, 3))
    mean, mass = np.zeros(3), 0.0
    for time in range(4 * steps):
        weight = (shift + time) ** 2
        mean, mass = mean + weight * models.mean(axis=0), mass + weight
        step = 4.0 / (strong * (shift + time))
        models = np.array([x - step * (h @ x - b) for x, (h, b) in zip(models, parts, strict=True)])
        if (time + 1) % steps == 0:
            models[:] = models.mean(axis=0)
    method = StichSGD(strong=strong, shift=shift, steps=steps, full_batch=True)
    np.testing.assert_allclose(run(method, problem, rounds=4), mean / mass, rtol=1e-12)


def test_pre_averaging_by_the_letter():
    problem = regression()

    parts = quadratics(problem)
    models = np.zeros((4, 3))
    for time in range(1, 4 * 3 + 1):
        moves = np.array([0.02 * (h @ x - b) for x, (h, b) in zip(models, parts, strict=True)])
        models = (models.mean(axis=0) if time % 3 == 0 else models) - moves
    method = RestartedSGD(steps=3, average="pre", full_batch=True, **STEP)
    np.testing.assert_allclose(run(method, problem, rounds=4), models.mean(axis=0), rtol=1e-12)


def test_agents_that_agree_make_local_gd_gradient_descent():
    """All P_k equal: H local steps and one average are H steps of gradient descent."""
    problem = identical_agents()
    one, other = LocalGD(steps=6, **STEP), LocalGD(steps=1, **STEP)
    np.testing.assert_allclose(
        run(one, problem, rounds=5), run(other, problem, rounds=30), rtol=1e-12
    )


@pytest.mark.parametrize("engine", ["agents", "objects"])
def test_a_scalar_example_by_hand(engine):
    """Two agents with P_k = (w - t_k)^2: one round of local GD with two steps of 1/4."""
    data = FederatedData.from_agents([(np.ones((1, 1)), [0.0]), (np.ones((1, 1)), [4.0])])
    problem = Problem(data, LeastSquares())
    # x -> x / 2 + t / 2, twice: x / 4 + 3 t / 4
    model = run(LocalGD(step_size=0.25, steps=2), problem, rounds=1, engine=engine)
    np.testing.assert_allclose(model, [1.5])
