"""A problem: federated data, a loss, and how much work every agent can do in a round."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from isfed.base.argument_checks import as_numbers, check_vector, shown
from isfed.base.gram_matrix import limited_blas
from isfed.problems import optimum
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import num_params_of
from isfed.problems.optimum import NoOptimumError


def _per_agent(value: Any, num_agents: int, *, name: str) -> np.ndarray:
    """One whole number >= 1 per agent, from one for all or from a vector."""
    given = as_numbers(value, name=name)
    if not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{name}={shown(value)} must be a whole number (or one per agent)")
    if given.ndim > 1 or (given.ndim == 1 and given.size != num_agents):
        raise ValueError(f"{name} has shape {given.shape}, expected one per agent ({num_agents})")
    values = np.broadcast_to(given, num_agents).astype(np.int64)
    if values.min() < 1:
        agent = int(values.argmin())
        raise ValueError(f"{name}={values[agent]} of agent {agent} must be at least 1")
    values.flags.writeable = False
    return values


@dataclass(frozen=True, eq=False, init=False)
class Problem:
    """What is learned: the params that minimise the mean loss of all agents, eqs. (1) and (2).

    The objective is 1/K sum_k 1/N_k sum_n loss(params; example n of agent k).

    Args:
        data: the examples of all agents.
        loss: a `Loss`; `gradient` alone will do.
        local_steps: E_k, the steps of a chosen agent; one number for all or one per agent.
        batch_size: B_k, the examples of a step; likewise. More than N_k can be drawn only with
            replacement, as FedAvg does.
        name: the name in tables and figures.
        optimum: w^o if you know it, (M,); None if it is not known, and then runs have no msd.
            Unless given, it is computed when something needs it.
    """

    data: FederatedData
    loss: Any
    local_steps: Any = 1
    batch_size: Any = 1
    name: str = "problem"
    _known_optimum: ClassVar[Any]  # set by `__init__`, but no field

    def __init__(
        self,
        data: FederatedData,
        loss: Any,
        local_steps: Any = 1,
        batch_size: Any = 1,
        name: str = "problem",
        *,
        optimum: np.ndarray | Literal["auto"] | None = "auto",
    ) -> None:
        if not isinstance(data, FederatedData):
            raise TypeError(f"data={shown(data)} must be FederatedData")
        if not isinstance(name, str):
            raise TypeError(f"name={shown(name)} must be a text")
        if isinstance(loss, type) or not callable(getattr(loss, "gradient", None)):
            raise TypeError(
                f"loss={shown(loss)} needs gradient(params, x, y, weight); see docs/extend.md"
            )
        # Optional: a loss may refuse rows it cannot take, or ask for them in another type.
        if hasattr(loss, "prepare"):
            data = loss.prepare(data)
        if hasattr(loss, "check_targets"):
            loss.check_targets(data.targets)
        local_steps = _per_agent(local_steps, data.num_agents, name="local_steps")
        batch_size = _per_agent(batch_size, data.num_agents, name="batch_size")
        vars(self).update(
            data=data, loss=loss, local_steps=local_steps, batch_size=batch_size, name=name
        )
        if isinstance(optimum, str) and optimum != "auto":
            raise ValueError(f"optimum={optimum!r} must be a model, None or 'auto'")
        if optimum is not None and not isinstance(optimum, str):
            optimum = check_vector(optimum, name="optimum", size=self.num_params)
        vars(self)["_known_optimum"] = optimum

    def batched_for(self, algorithm: Any) -> Self:
        """This problem with the batches of an algorithm: B_k = N_k if it has `full_batch`."""
        sizes = self.data.num_examples
        if not getattr(algorithm, "full_batch", False) or np.array_equal(self.batch_size, sizes):
            return self
        _ = self.no_optimum  # so that w^o is found once, for both
        other = copy.copy(self)
        vars(other)["batch_size"] = _per_agent(sizes, sizes.size, name="batch_size")
        return other

    @property
    def num_agents(self) -> int:
        """K."""
        return self.data.num_agents

    @cached_property
    def num_params(self) -> int:
        """M; one per feature unless the loss says otherwise."""
        return num_params_of(self.loss, self.data.num_features)

    @cached_property
    def optimum(self) -> np.ndarray:
        """w^o of eq. (1), computed when first asked for; a `NoOptimumError` where it is unknown."""
        known = self._known_optimum
        if known is None:
            raise NoOptimumError(
                "this problem was made with optimum=None: nothing that needs w^o, such as the msd "
                "and the oracle, is available"
            )
        if not isinstance(known, str):
            return known
        return optimum.minimise(
            self.loss, self.data.features, self.data.targets, self.data.row_weights()
        )

    @cached_property
    def by_size(self) -> Problem:
        """The same data where agents count by their numbers of examples: sum_k N_k / N P_k.

        Its w^o is what methods with client_weights="size" aim at. An optimum that was given is that
        of the weights of the data, so here it is computed.
        """
        data = self.data
        if data.weights is None and (data.num_examples == data.num_examples[0]).all():
            return self
        weighted = FederatedData(data.features, data.targets, data.offsets, data.num_examples)
        return Problem(
            weighted, self.loss, self.local_steps, self.batch_size, self.name,
            optimum=None if self._known_optimum is None else "auto",
        )  # fmt: skip

    def with_optimum(self, optimum: np.ndarray) -> Problem:
        """The same problem with another model in the place of w^o, (M,)."""
        return Problem(
            self.data, self.loss, self.local_steps, self.batch_size, self.name, optimum=optimum
        )

    @property
    def without_optimum(self) -> bool:
        """Whether it was made with optimum=None, to do without; some losses never have one."""
        known = self._known_optimum
        never = isinstance(known, str) and getattr(self.loss, "without_optimum", False)
        return known is None or never

    @property
    def has_optimum(self) -> bool:
        """Whether w^o is known or can be computed."""
        return self.no_optimum is None

    @cached_property
    def no_optimum(self) -> str | None:
        """Why w^o is not known; None if it is."""
        try:
            _ = self.optimum
        except NoOptimumError as error:
            return str(error)
        return None

    def local_optimum(self, agent: int) -> np.ndarray:
        """w_k^o, the minimiser of one agent's own risk."""
        x, y = self.data.agent(agent)  # which refuses a number that no agent has
        return optimum.minimise(self.loss, x, y, np.full(len(y), 1.0 / len(y)))

    @cached_property
    def largest_curvature(self) -> float:
        """delta of Assumption 1: the largest Lipschitz constant of an example's gradient."""
        return float(np.max(self.loss.curvature(self.data.features)))

    @cached_property
    def drift_response(self) -> np.ndarray:
        """How w^o moves when the true model moves: (R + ridge I)^-1 R, least squares only."""
        return optimum.drift_response(self.loss, self.data.features, self.data.row_weights())

    def risk(self, params: np.ndarray) -> float:
        """The objective of eq. (1)."""
        params = check_vector(params, name="params", size=self.num_params)
        return float(self.risks(params[None])[0])

    def risks(self, models: np.ndarray) -> np.ndarray:
        """(R,) the objective at each of the models, (R, M)."""
        if not hasattr(self.loss, "values"):
            raise ValueError(
                f"{type(self.loss).__name__} has no values(params, x, y), so its risk cannot be "
                "computed; add it to the loss"
            )
        x, y, weights = self.data.features, self.data.targets, self.data.row_weights()
        with limited_blas():
            return np.array([weights @ self.loss.values(model, x, y) for model in models])
