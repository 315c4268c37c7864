"""synthetic(alpha, beta): ten classes on thirty devices that differ in their model and in their
data (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020, section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isfed.base.argument_types import check_fields
from isfed.base.portable_arithmetic import power, product
from isfed.base.random_streams import Purpose
from isfed.base.value_checks import check_seed, check_whole, is_number
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import Softmax
from isfed.problems.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """How to generate synthetic(alpha, beta).

    Device k labels its data by argmax(W_k x + b_k), with entries of W_k and b_k from N(u_k, 1) and
    u_k from N(0, alpha^2), and draws x from N(v_k, diag(j^-1.2)), with entries of v_k from
    N(B_k, 1) and B_k from N(0, beta^2). Its size is 50 more than a log-normal number (4, 2). The
    loss is softmax regression with a constant feature for the b.

    alpha: how much the devices' models differ (a standard deviation).
    beta: how much their data differ (a standard deviation).
    num_agents: the number of devices, 30 in the paper.
    num_features: the number of features, 60 in the paper.
    num_classes: the number of classes, 10 in the paper.
    ridge: weight of |params|^2; 0.001 in the paper's code.
    local_steps, batch_size: E_k and B_k of every device.
    most_examples: the largest number of examples of a device; None sets no limit.

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
        for name, least in (("num_agents", 1), ("num_features", 1), ("num_classes", 2)):
            check_whole(getattr(self, name), name=name, least=least)
        check_whole(self.local_steps, name="local_steps", least=1)
        check_whole(self.batch_size, name="batch_size", least=1)
        if self.most_examples is not None:
            check_whole(self.most_examples, name="most_examples", least=self.batch_size)

    @property
    def name(self) -> str:
        """As the paper writes it."""
        return f"synthetic({self.alpha:g},{self.beta:g})"

    def make(self, *, seed: int = 0) -> Problem:
        """Generate the problem."""
        check_seed(seed)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(Purpose.DATA),)))
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
