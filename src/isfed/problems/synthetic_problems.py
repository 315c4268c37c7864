"""Random problems: the paper's regression (section V-A), and synthetic(alpha, beta).

The second is of Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from isfed.base.argument_checks import check_fields, check_seed, check_whole, is_number
from isfed.base.portable_arithmetic import exp, log, matvec, power, product
from isfed.base.random_streams import Purpose
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import LeastSquares, Softmax
from isfed.problems.problem import Problem

MOST_NUMBERS = 2**50  # nine petabytes
LARGEST_VARIANCE, LARGEST_RATIO = 1e60, 1e20  # beyond, squares of features and targets overflow
MOST = 2**31  # steps and examples: more is a slip of the hand


def _generator(seed: int) -> np.random.Generator:
    sequence = np.random.SeedSequence(check_seed(seed), spawn_key=(int(Purpose.DATA),))
    return np.random.default_rng(sequence)


@dataclass(frozen=True, kw_only=True)
class Regression:
    """How to generate a regression: d = u . w* + v at every agent, with w* ~ N(0, I).

    Everything is drawn once, from the seed of `make`.

    Args:
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
        variances = LARGEST_VARIANCE, f"positive numbers up to {LARGEST_VARIANCE:g}"
        counts = MOST - 1, f"whole numbers from 1 to {MOST - 1}"
        for name, (most, numbers) in {
            "feature_variance": variances, "noise_variance": variances,
            "local_steps": counts, "batch_size": counts,
        }.items():  # fmt: skip
            value = getattr(self, name)
            if not (isinstance(value, tuple) and 0 < value[0] <= value[1] <= most):
                raise ValueError(f"{name}={value} must be a range of {numbers}")
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
        rng = _generator(seed)
        agents, examples, size = self.num_agents, self.num_examples, self.num_features
        true_params = rng.standard_normal(size)
        spread = np.sqrt(rng.uniform(*self.feature_variance, size=(agents, 1, size)))
        noise = exp(rng.uniform(*log(self.noise_variance), size=(agents, 1)) / 2)
        noisy = rng.permutation(agents)[: round(self.noisy_share * agents)]
        noise[noisy] *= self.noise_ratio
        features = rng.standard_normal((agents, examples, size))
        features *= spread
        features = features.reshape(-1, size)
        targets = rng.standard_normal((agents, examples))
        targets *= noise
        targets = targets.reshape(-1)
        targets += matvec(features, true_params)
        local_steps = rng.integers(*self.local_steps, size=agents, endpoint=True)
        batch_size = rng.integers(*self.batch_size, size=agents, endpoint=True)
        features.flags.writeable = False  # FederatedData then takes them as they are
        targets.flags.writeable = False
        data = FederatedData(features, targets, np.arange(agents + 1) * examples)
        return Problem(
            data=data,
            loss=LeastSquares(ridge=self.ridge),
            local_steps=local_steps,
            batch_size=batch_size,
            name=self.name,
        )


PAPER = Regression(name="paper")
EQUAL = Regression(name="equal", feature_variance=(1.0, 1.0), noise_variance=(0.01, 0.01))
OUTLIERS = Regression(
    name="outliers", noise_variance=(0.01, 0.01), noisy_share=0.01, noise_ratio=100.0
)
PRESETS = {preset.name: preset for preset in (PAPER, EQUAL, OUTLIERS)}


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """How to generate synthetic(alpha, beta).

    Device k labels its data by argmax(W_k x + b_k). The entries of W_k and b_k are from N(u_k, 1),
    u_k from N(0, alpha^2). It draws x from N(v_k, diag(j^-1.2)), with entries of v_k from N(B_k, 1)
    and B_k from N(0, beta^2). Its size is 50 more than a log-normal number (4, 2). The
    loss is softmax regression with a constant feature for the b.

    Args:
        alpha: how much the devices' models differ (a standard deviation).
        beta: how much their data differ (a standard deviation).
        num_agents: the number of devices, 30 in the paper.
        num_features: the number of features, 60 in the paper.
        num_classes: the number of classes, 10 in the paper.
        ridge: weight of |params|^2; 0.001 in the paper's code.
        local_steps, batch_size: E_k and B_k of every device.
        most_examples: the largest number of examples of a device; None sets no limit.

    Examples:
        >>> Synthetic(num_agents=5, num_features=4, num_classes=3).make().num_params
        15
    """

    alpha: float = 1.0
    beta: float = 1.0
    num_agents: int = 30
    num_features: int = 60
    num_classes: int = 10
    ridge: float = 1e-3
    local_steps: int = 5
    batch_size: int = 10
    most_examples: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0.0):
                raise ValueError(f"{name}={value!r} must be a number >= 0")
        for name in ("num_agents", "num_features", "num_classes", "local_steps", "batch_size"):
            check_whole(getattr(self, name), name=name, least=2 if name == "num_classes" else 1)
        if self.most_examples is not None:
            check_whole(self.most_examples, name="most_examples", least=self.batch_size)

    @property
    def name(self) -> str:
        """As the paper writes it."""
        return f"synthetic({self.alpha:g},{self.beta:g})"

    def make(self, *, seed: int = 0) -> Problem:
        """Generate the problem."""
        rng = _generator(seed)
        count, size, classes = self.num_agents, self.num_features, self.num_classes
        sizes = rng.lognormal(4.0, 2.0, count).astype(np.int64) + 50
        if self.most_examples is not None:
            sizes = np.minimum(sizes, self.most_examples)
        model_means = rng.normal(0.0, self.alpha, count)
        data_means = rng.normal(0.0, self.beta, count)
        spread = np.sqrt(power(np.arange(1, size + 1), -1.2))
        features, targets = [], []
        for agent in range(count):
            centre = rng.normal(data_means[agent], 1.0, size)
            weights = rng.normal(model_means[agent], 1.0, (size, classes))
            bias = rng.normal(model_means[agent], 1.0, classes)
            x = centre + spread * rng.standard_normal((sizes[agent], size))
            features.append(np.column_stack([x, np.ones(sizes[agent])]))
            targets.append(np.argmax(product(x, weights) + bias, axis=1).astype(np.float64))
        return Problem(
            FederatedData.from_agents(list(zip(features, targets, strict=True))),
            Softmax(ridge=self.ridge, num_classes=classes),
            local_steps=self.local_steps,
            batch_size=np.minimum(self.batch_size, sizes),
            name=self.name,
        )
