"""The kernel and the objects agree bit for bit, whatever the loss."""

import numpy as np
import pytest

from isfed import (
    Current,
    FedAvg,
    FederatedData,
    HartleyRao,
    Huber,
    ISFedAvg,
    LeastSquares,
    Logistic,
    Memory,
    Oracle,
    Problem,
    Running,
    Softmax,
    simulate,
)
from isfed.simulate.kernel import run_rounds

AGENTS, FEATURES = 9, 10
LOSSES = [
    Softmax(num_classes=3, ridge=0.01),
    Huber(ridge=0.01, knee=0.7),
    LeastSquares(ridge=0.01),
    Logistic(ridge=0.01),
]
ALGORITHMS = [
    FedAvg(step_size=0.05, num_active=4),
    ISFedAvg(step_size=0.05, num_active=4),
    ISFedAvg(step_size=0.05, num_active=4, agents=Memory(), examples=Running(floor=0.3)),
    ISFedAvg(step_size=0.05, num_active=4, agents=Current(), examples=Current()),
    ISFedAvg(
        step_size=0.05, num_active=4, agents=Oracle(), examples=Oracle(),
        example_design=HartleyRao(),
    ),
]  # fmt: skip


def problem_with(loss):
    rng = np.random.default_rng(7)
    sizes = rng.integers(6, 15, AGENTS)
    x = rng.standard_normal((sizes.sum(), FEATURES))
    if isinstance(loss, Softmax):
        y = rng.integers(loss.num_classes, size=len(x)).astype(float)
    elif isinstance(loss, Logistic):
        y = np.where(rng.random(len(x)) < 0.4, 1.0, -1.0)
    else:
        y = x[:, 0] + rng.standard_t(2, len(x))
    data = FederatedData(x, y, np.concatenate([[0], np.cumsum(sizes)]))
    return Problem(
        data=data,
        loss=loss,
        local_steps=rng.integers(1, 4, AGENTS),
        batch_size=rng.integers(1, 5, AGENTS),
    )


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_kernel_and_objects_agree_bit_for_bit(loss, algorithm):
    problem = problem_with(loss)
    kernel, objects = (
        simulate(problem, algorithm, rounds=12, repetitions=2, seed=3, engine=engine)
        for engine in ("kernel", "objects")
    )
    for name in ("msd", "params", "agent_prob", "example_prob", "gradients", "uploads"):
        np.testing.assert_array_equal(getattr(kernel, name), getattr(objects, name), err_msg=name)


def test_the_kernel_is_compiled_once_for_all_losses():
    counts = []
    for loss in LOSSES:
        simulate(problem_with(loss), ALGORITHMS[0], rounds=1)
        counts.append(len(run_rounds.signatures))
    assert counts == [counts[0]] * len(LOSSES)


@pytest.mark.parametrize("loss", LOSSES[:2], ids=lambda loss: type(loss).__name__)
def test_it_learns(loss):
    problem = problem_with(loss)
    history = simulate(problem, ISFedAvg(step_size=0.02, num_active=6), rounds=3000)
    start = float(problem.optimum @ problem.optimum)
    assert history.steady().msd < 0.05 * start
