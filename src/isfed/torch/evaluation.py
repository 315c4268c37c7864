"""How good a network is: on rows of its own now and then, and on every agent's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from isfed.base.argument_checks import checked
from isfed.problems import FederatedData
from isfed.torch.module_checks import check_params
from isfed.torch.network import Network


class Evaluation(NamedTuple):
    """Mean loss and accuracy; the accuracy is nan where targets are not classes.

    Examples that the loss ignores do not count in the accuracy.
    """

    loss: float
    accuracy: float


@checked
def evaluate(network: Network, params: np.ndarray, x: Any, y: Any) -> Evaluation:
    """The mean loss and the accuracy of a model, in evaluation mode.

    Args:
        network: the loss of the problem.
        params: (M,) the model.
        x: the rows.
        y: their targets.
    """
    check_params(params, network.num_params())
    x, y = np.asarray(x), np.asarray(y)
    _check_rows(network, x, y, "the rows to evaluate on")
    return _evaluate(network, params, x, y)


def _check_rows(network: Network, x: np.ndarray, y: np.ndarray, what: str) -> None:
    """Raise a ValueError that names them if these rows cannot be evaluated."""
    try:
        network.prepare(FederatedData(x, y, np.array([0, len(x)])))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _evaluate(network: Network, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> Evaluation:
    losses, correct = network.losses_and_correct(params, x, y).T
    counted = correct[~np.isnan(correct)]  # a loss may ignore some
    return Evaluation(float(losses.mean()), float(counted.mean()) if counted.size else np.nan)


@checked
def evaluate_agents(network: Network, params: np.ndarray, data: FederatedData) -> np.ndarray:
    """(K, 2) mean loss and accuracy of a model on the rows of every agent.

    Args:
        network: the loss of the problem.
        params: (M,) the model.
        data: the rows of all agents.
    """
    check_params(params, network.num_params())
    _check_rows(network, data.features, data.targets, "the rows of the agents")
    rows = map(data.agent, range(data.num_agents))
    return np.array([_evaluate(network, params, x, y) for x, y in rows])


@dataclass(eq=False)
class Evaluate:
    """A measure for `simulate`: loss and accuracy on rows that nobody trains on.

    Args:
        network: the loss of the problem.
        x: the rows.
        y: their targets.
        every: rounds between evaluations; the first round and the last are always among them.
    """

    network: Network
    x: Any
    y: Any
    every: int = 10
    names: tuple[str, ...] = field(default=("loss", "accuracy"), init=False)

    def __post_init__(self) -> None:
        self.x, self.y = np.asarray(self.x), np.asarray(self.y)
        _check_rows(self.network, self.x, self.y, "the test rows")

    def __call__(self, params: np.ndarray) -> np.ndarray:
        """(R, 2) losses and accuracies of models, (R, M)."""
        return np.array([_evaluate(self.network, model, self.x, self.y) for model in params])
