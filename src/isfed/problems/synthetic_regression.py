"""The paper's regression (section V-A), with named presets for what the paper leaves open."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from isfed.base.argument_types import check_fields
from isfed.base.portable_arithmetic import exp, log, matvec
from isfed.base.random_streams import Purpose
from isfed.base.value_checks import check_seed, check_whole
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import LeastSquares
from isfed.problems.problem import Problem

MOST_NUMBERS = 2**50  # nine petabytes
LARGEST_VARIANCE, LARGEST_RATIO = 1e60, 1e20  # beyond, squares of features and targets overflow
MOST = 2**31  # steps and examples: more is a slip of the hand


@dataclass(frozen=True, kw_only=True)
class Regression:
    """How to generate a regression: d = u . w* + v at every agent, with w* ~ N(0, I).

    Everything is drawn once, from the seed of `make`.

    name: the name in tables and figures.
    num_agents: K, the number of agents.
    num_examples: N_k, the same for all agents.
    num_features: M, the number of features.
    feature_variance: the range from which the variances of every agent's features are drawn
        (uniformly).
    noise_variance: the range from which the variance of every agent's noise is drawn
        (log-uniformly).
    noisy_share: the share of the agents that have more noise than the others.
    noise_ratio: how many times larger the standard deviation of their noise is.
    local_steps: E_k, the steps of agent k per round, is drawn uniformly from this range.
    batch_size: B_k, the examples of agent k per step, is drawn uniformly from this range.
    ridge: rho, the weight of |params|^2 in the loss.
    """

    name: str = "regression"
    num_agents: int = 300
    num_examples: int = 100
    num_features: int = 2
    feature_variance: tuple[float, float] = (0.5, 2.0)
    noise_variance: tuple[float, float] = (1e-3, 1.0)
    noisy_share: float = 0.0
    noise_ratio: float = 1.0
    local_steps: tuple[int, int] = (1, 5)
    batch_size: tuple[int, int] = (1, 10)
    ridge: float = 0.001

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("num_agents", "num_examples", "num_features"):
            check_whole(getattr(self, name), name=name, least=1)
        if self.num_agents * self.num_examples * self.num_features > MOST_NUMBERS:
            raise ValueError(
                f"num_agents={self.num_agents}, num_examples={self.num_examples} and "
                f"num_features={self.num_features} make more numbers than any memory holds"
            )
        for name in ("feature_variance", "noise_variance", "local_steps", "batch_size"):
            value = getattr(self, name)
            if not (isinstance(value, tuple) and len(value) == 2):
                raise ValueError(f"{name}={value!r} must be a range of two numbers")
        for name in ("feature_variance", "noise_variance"):
            low, high = getattr(self, name)
            if not 0.0 < low <= high <= LARGEST_VARIANCE:
                raise ValueError(
                    f"{name}={(low, high)} must be a range of positive numbers up to "
                    f"{LARGEST_VARIANCE:g}"
                )
        for name in ("local_steps", "batch_size"):
            low, high = getattr(self, name)
            whole = isinstance(low, int) and isinstance(high, int)
            if not (whole and 1 <= low <= high < MOST):
                raise ValueError(
                    f"{name}={(low, high)} must be a range of whole numbers from 1 to {MOST - 1}"
                )
        if not 0.0 <= self.noisy_share <= 1.0:
            raise ValueError(f"noisy_share={self.noisy_share} must be between 0 and 1")
        if not 0.0 < self.noise_ratio <= LARGEST_RATIO:
            raise ValueError(
                f"noise_ratio={self.noise_ratio} must be positive, at most {LARGEST_RATIO:g}"
            )
        if not 0.0 <= self.ridge < np.inf:
            raise ValueError(f"ridge={self.ridge} must be a finite number >= 0")

    def replace(self, **changes) -> Regression:
        """The same recipe with some fields changed."""
        return replace(self, **changes)

    def make(self, *, seed: int = 0) -> Problem:
        """Generate the problem."""
        return make_regression(self, seed=check_seed(seed))


PAPER = Regression(name="paper")
EQUAL = Regression(name="equal", feature_variance=(1.0, 1.0), noise_variance=(0.01, 0.01))
OUTLIERS = Regression(
    name="outliers", noise_variance=(0.01, 0.01), noisy_share=0.01, noise_ratio=100.0
)
PRESETS = {preset.name: preset for preset in (PAPER, EQUAL, OUTLIERS)}


def make_regression(recipe: Regression, *, seed: int = 0) -> Problem:
    """Generate a regression problem from its recipe."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(Purpose.DATA),)))
    agents, examples, size = recipe.num_agents, recipe.num_examples, recipe.num_features
    true_params = rng.standard_normal(size)
    spread = np.sqrt(rng.uniform(*recipe.feature_variance, size=(agents, 1, size)))
    noise = exp(rng.uniform(*log(recipe.noise_variance), size=(agents, 1)) / 2)
    noisy = rng.permutation(agents)[: round(recipe.noisy_share * agents)]
    noise[noisy] *= recipe.noise_ratio
    features = rng.standard_normal((agents, examples, size))
    features *= spread
    features = features.reshape(-1, size)
    targets = rng.standard_normal((agents, examples))
    targets *= noise
    targets = targets.reshape(-1)
    targets += matvec(features, true_params)
    local_steps = rng.integers(*recipe.local_steps, size=agents, endpoint=True)
    batch_size = rng.integers(*recipe.batch_size, size=agents, endpoint=True)
    features.flags.writeable = False  # FederatedData then takes them as they are
    targets.flags.writeable = False
    data = FederatedData(features, targets, np.arange(agents + 1) * examples)
    return Problem(
        data=data,
        loss=LeastSquares(ridge=recipe.ridge),
        local_steps=local_steps,
        batch_size=batch_size,
        name=recipe.name,
    )
