"""The compiled risks are the means of the losses' own values."""

import numpy as np
import pytest

from isfed import FederatedData, Huber, LeastSquares, Logistic, Problem, Softmax
from isfed.federation.problem_arrays import agent_risks

LOSSES = {
    "squares": (LeastSquares(0.1), lambda rng, n: rng.standard_normal(n)),
    "huber": (Huber(0.1, knee=0.5), lambda rng, n: rng.standard_normal(n)),
    "logistic": (Logistic(0.1), lambda rng, n: rng.choice([-1.0, 1.0], n)),
    "softmax": (Softmax(ridge=0.1, num_classes=3), lambda rng, n: rng.integers(0, 3, n) * 1.0),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("num_features", [2, 11])
def test_risks(name, num_features):
    loss, make_targets = LOSSES[name]
    rng = np.random.default_rng(3)
    agents = [(rng.standard_normal((n, num_features)), make_targets(rng, n)) for n in (4, 1, 7)]
    problem = Problem(FederatedData.from_agents(agents), loss, batch_size=1)
    which = np.array([2, 0])
    models = 3.0 * rng.standard_normal((2, problem.num_params))
    expected = [
        loss.values(w, *problem.data.agent(k)).mean() for w, k in zip(models, which, strict=True)
    ]
    np.testing.assert_allclose(agent_risks(problem, which, models), expected, rtol=1e-12)
    one = agent_risks(problem, which, models[0])
    np.testing.assert_allclose(one[0], expected[0], rtol=1e-12)


def test_a_loss_without_values_says_so():
    class Silent:
        def gradient(self, params, x, y, weight):
            return params, np.zeros(len(y))

        def num_params(self, num_features):
            return num_features

        def check_targets(self, targets):
            pass

    problem = Problem(
        FederatedData.from_agents([(np.ones((2, 1)), np.zeros(2))]), Silent(), optimum=np.zeros(1)
    )
    with pytest.raises(ValueError, match=r"Silent has no values"):
        agent_risks(problem, np.array([0]), np.zeros(1))
