"""ISFedAvg as a scikit-learn estimator: `fit(X, y, agents=...)`, `predict`, `score`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from isfed.datasets.encoder import federated_scaling
from isfed.datasets.partition import by_column
from isfed.methods import ISFedAvg
from isfed.problems import Problem
from isfed.problems.federated_data import FederatedData
from isfed.problems.losses import LeastSquares, LinearLoss, Logistic, Softmax
from isfed.sampling.policies import Memory, Uniform
from isfed.simulate import simulate
from isfed.simulate.pilot_runs import with_best_step_size
from isfed.simulate.simulate_call import check_run
from isfed.studies.model_file import probabilities

USUAL_AGENTS = 10  # where nobody says whose row it is
STAGES = (1.0, 0.25, 0.0625)  # of an automatic step size, a third of the rounds each
NOT_SETTLED = 0.01  # of all that the risk fell: more in the last third is still moving


def _checked(estimator: Any, X: Any, **options: Any) -> Any:
    """What scikit-learn makes of X (and y), with its own errors."""
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # before scikit-learn 1.6
        return estimator._validate_data(X, **options)
    return validate_data(estimator, X, **options)


class _Federated(BaseEstimator):
    """What the regressor and the classifier share.

    Args:
        num_active: L, agents per round; one tenth of them unless given.
        importance: whether agents and examples are drawn by importance, or uniformly.
        average: whether the model is the mean of those of the last half of the rounds; with the
            shrinking step sizes of "auto" that gains little (docs/appendix/ways.md).
        step_size: a number, or "auto": the best for a third of the rounds, found by
            trials, then a quarter and a sixteenth of it.
        rounds: the number of rounds.
        batch_size: B, examples per step, at most.
        local_steps: E, steps of an agent per round.
        ridge: weight of the squared length of the model, over standardised features.
        weights: "agents" if every agent counts the same, "rows" if every row does.
        random_state: the seed of all random draws.

    After `fit`, `step_size_` is the step size of the first rounds, `n_rounds_` their number.
    """

    def __init__(
        self,
        *,
        num_active: int | None = None,
        importance: bool = True,
        average: bool = False,
        step_size: float | str = "auto",
        rounds: int = 1500,
        batch_size: int = 8,
        local_steps: int = 1,
        ridge: float = 1e-3,
        weights: str = "agents",
        random_state: int = 0,
    ) -> None:
        self.num_active = num_active
        self.importance = importance
        self.average = average
        self.step_size = step_size
        self.rounds = rounds
        self.batch_size = batch_size
        self.local_steps = local_steps
        self.ridge = ridge
        self.weights = weights
        self.random_state = random_state

    def _fit(self, X: np.ndarray, targets: np.ndarray, agents: Any, loss: LinearLoss) -> None:
        problem, scaling = self._problem(X, targets, agents, loss)
        params = self._train(problem).reshape(loss.compiled.num_rows, -1)
        self.coef_: Any = params[:, :-1] / scaling.scale
        self.intercept_: Any = params[:, -1] - self.coef_ @ scaling.mean
        self.num_agents_ = problem.num_agents
        self.n_iter_ = self.rounds

    def _problem(self, X, targets, agents, loss: LinearLoss) -> tuple[Problem, Any]:
        if agents is None:
            labels = np.arange(len(X)) % min(USUAL_AGENTS, len(X))
            warnings.warn(
                f"no agents were given, so the rows are dealt to {labels.max() + 1} equal ones, "
                "which hide how agents differ; use fit(X, y, agents=...)",
                stacklevel=4,
            )
        else:
            labels = column_or_1d(agents)
            check_consistent_length(X, labels)
        partition = by_column(labels)
        rows = np.asarray(X, dtype=np.float64)[partition.rows]
        scaling = federated_scaling(rows, partition.offsets)
        features = np.column_stack([scaling.apply(rows), np.ones(len(rows))])
        if self.weights not in ("agents", "rows"):
            raise ValueError(f"weights={self.weights!r} must be 'agents' or 'rows'")
        counts = np.diff(partition.offsets) if self.weights == "rows" else None
        data = FederatedData(features, targets[partition.rows], partition.offsets, counts)
        batch = np.minimum(self.batch_size, data.num_examples)
        return Problem(data, loss, local_steps=self.local_steps, batch_size=batch), scaling

    def _train(self, problem: Problem) -> np.ndarray:
        usual = max(1, problem.num_agents // 10)
        active = usual if self.num_active is None else self.num_active
        policy = Memory() if self.importance else Uniform()
        step: Any = self.step_size
        method: Any = ISFedAvg(
            step_size=step, num_active=active, agents=policy, examples=policy, average=self.average
        )
        automatic = self.step_size == "auto" and self.rounds >= len(STAGES)
        stages = STAGES if automatic else (1.0, 1.0, 1.0)[: self.rounds]
        edges = [self.rounds * part // len(stages) for part in range(len(stages) + 1)]
        check_run(problem, method, self.rounds, 1)
        method = with_best_step_size(problem, method, rounds=max(edges[1], 1))
        models = [np.zeros(problem.num_params)]
        for number, share in enumerate(stages):
            history = simulate(
                problem, replace(method, step_size=share * method.step_size),
                rounds=edges[number + 1] - edges[number], repetitions=1, initial=models[-1],
                seed=int(self.random_state) + number,
            )  # fmt: skip
            models.append(history.params[0])
        self.step_size_, self.n_rounds_ = float(method.step_size), int(self.rounds)
        first, before, last = (problem.risk(models[at]) for at in (0, -2, -1))
        if before - last > NOT_SETTLED * (first - last):
            warnings.warn(
                f"the risk still fell in the last third of the {self.rounds} rounds, from "
                f"{before:.4g} to {last:.4g}; use more rounds",
                ConvergenceWarning,
                stacklevel=4,
            )
        return models[-1]

    def _margins(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return _checked(self, X, reset=False) @ self.coef_.T + self.intercept_


class FederatedRegressor(RegressorMixin, _Federated):
    """Linear regression by ISFedAvg, over the agents that the rows belong to.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((200, 2))
        >>> y = X @ [2.0, -1.0] + 3.0
        >>> model = FederatedRegressor(rounds=600).fit(X, y, agents=[0, 1] * 100)
        >>> model.score(X, y) > 0.99
        True
    """

    def fit(self, X: Any, y: Any, agents: Any = None) -> FederatedRegressor:
        """Train; `agents` names the agent of every row (ten equal ones unless given)."""
        X, y = _checked(self, X, y=y, dtype=np.float64, y_numeric=True)
        self._fit(X, np.asarray(y, dtype=np.float64), agents, LeastSquares(ridge=self.ridge))
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The expected target of every row."""
        return self._margins(X)


class FederatedClassifier(ClassifierMixin, _Federated):
    """Logistic or softmax regression by ISFedAvg, over the agents that the rows belong to.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((200, 2))
        >>> y = np.where(X[:, 0] > 0, "yes", "no")
        >>> FederatedClassifier(rounds=600).fit(X, y, agents=[0, 1] * 100).score(X, y) > 0.9
        True
    """

    def fit(self, X: Any, y: Any, agents: Any = None) -> FederatedClassifier:
        """Train; `agents` names the agent of every row (ten equal ones unless given)."""
        X, y = _checked(self, X, y=y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"a classifier needs at least 2 classes, but y has {count} class")
        loss: LinearLoss = Logistic(ridge=self.ridge)
        targets = 2.0 * codes - 1.0
        if count > 2:
            loss, targets = Softmax(ridge=self.ridge, num_classes=count), codes.astype(np.float64)
        self._fit(X, targets, agents, loss)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Of two classes how much the second is favoured, (rows,); else a score for each class."""
        margins = self._margins(X)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, (rows, classes)."""
        return probabilities(self._margins(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of every row."""
        margins = self._margins(X)
        best = (
            (margins[:, 0] > 0.0).astype(int) if margins.shape[1] == 1 else margins.argmax(axis=1)
        )
        return self.classes_[best]
