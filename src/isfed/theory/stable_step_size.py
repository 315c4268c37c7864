"""Step sizes at which a run is stable, from the curvature of the losses and the probabilities.

Near the optimum a round is w_i - w^o = (I - mu H_i)(w_{i-1} - w^o) + noise with a random H_i, the
weighted mean of the curvatures drawn. Three limits on mu, each below the one before:

    mean         2 / (largest eigenvalue of E[H]): gradient descent with all data
    mean_square  2 / (largest eigenvalue of E[H]^-1 E[H^2]): E|w - w^o|^2 shrinks in every direction
    every_draw   2 / (largest curvature that one local step can meet): no draw at all overshoots

All take a turn of E_k local steps as one step of their mean, which is right for small steps and
careful for large ones: smaller steps in between overshoot less.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from isfed.base.argument_checks import check_vector, checked
from isfed.methods import ISFedAvg
from isfed.methods.servers import adds_steps
from isfed.problems import NoOptimumError, Problem
from isfed.problems.losses import LeastSquares, LinearLoss
from isfed.sampling.policies import Uniform
from isfed.theory.probabilities import Choices, check_model, choices_at, risk_gradients
from isfed.theory.round_curvature import MOST_PARAMS, CurvatureAt, LargestCurvature

AUTO = "auto"
SHARE_OF_LIMIT = 0.25  # of the mean-square limit: the noise is then a third above its first order
SHARE_OF_CURVATURE = 0.1  # of 1 / curvature, where no curvature of single examples is known
SMALL = 64  # features up to which matrices are built column by column
POWER_STEPS = 60
# Of 1 / (largest curvature of an agent): up to this step size steps by differences from remembered
# gradients are known to be stable, whoever is drawn (Defazio, Bach, Lacoste-Julien 2014).
SHARE_OF_MEMORY = 1.0 / 3.0
# What learned probabilities of examples leave of the limit at w^o, where a loss bends. They lag
# behind the model: on 15 logistic and softmax problems (docs/make/stable_steps.py) runs became
# unstable between an eighth and a half of the limit, those of uniform examples at 1 to 2 times.
SHARE_OF_LEARNED = 0.2
# Where a turn looks at fewer examples than that, what agents report says little of them, and
# learned probabilities of agents or examples are further off: a quarter is left.
FEW_EXAMPLES, SHARE_OF_FEW = 4, 0.25


@dataclass(frozen=True)
class Limits:
    """Three step-size limits, each below the one before."""

    mean: float
    mean_square: float
    every_draw: float


def _check_linear(problem: Problem) -> None:
    if not isinstance(problem.loss, LinearLoss):
        raise ValueError(
            f"{type(problem.loss).__name__} has no curvature of single examples, so step-size "
            "limits cannot be computed"
        )


@checked
def step_limits(
    problem: Problem,
    algorithm: ISFedAvg,
    choices: Choices | None = None,
    *,
    params: np.ndarray | None = None,
) -> Limits:
    """The limits on the step size for these probabilities.

    Args:
        problem: what is learned, with one of the built-in losses.
        algorithm: its policies, designs and number of agents count; its step size does not.
        choices: the inclusion probabilities; those at w^o unless given.
        params: (M,) if given, the curvature is that of the losses at this model, which decides
            whether a run stays near it. Otherwise every example has its largest curvature anywhere:
            the careful limits, the same for least squares and far smaller for logistic and softmax
            losses.

    Examples:
        >>> from isfed import PAPER, FedAvg
        >>> limits = step_limits(PAPER.make(), FedAvg(step_size="auto", num_active=6))
        >>> limits.mean > limits.mean_square > limits.every_draw
        True
    """
    _check_linear(problem)
    problem = problem.batched_for(algorithm)
    chosen = choices_at(problem, algorithm) if choices is None else choices
    if params is None:
        curvature = LargestCurvature(problem)
    else:
        curvature = CurvatureAt(problem, check_model(problem, params))
    return limits_of(curvature.drawn(algorithm, chosen))


def limits_of(curvature: LargestCurvature) -> Limits:
    """The limits that follow from the curvature of a round."""
    spectrum, vectors = linalg.eigh(curvature.mean_matrix())
    if not spectrum[-1] > 0.0:
        raise ValueError(
            "the risk has no curvature at all, so no step size can be derived; give a number"
        )
    seen = spectrum > 1e-12 * spectrum[-1]  # the rest does not move at all
    whiten = vectors[:, seen] / np.sqrt(spectrum[seen])
    if len(vectors) <= SMALL:
        largest = linalg.eigvalsh(whiten.T @ curvature.square_matrix() @ whiten)[-1]
    else:
        from scipy.sparse.linalg import LinearOperator, eigsh  # takes a while to import

        operator: Any = LinearOperator  # its own types do not know that `matvec` is an argument
        turned = operator(
            (whiten.shape[1],) * 2,
            matvec=lambda v: whiten.T @ curvature.square(whiten @ np.ravel(v)),
            dtype=np.float64,
        )
        options: Any = {"tol": 1e-3, "v0": np.ones(whiten.shape[1])}
        largest = eigsh(turned, k=1, which="LA", return_eigenvectors=False, **options)[0]
    return Limits(
        mean=float(2.0 / spectrum[-1]),
        mean_square=float(2.0 / largest),
        every_draw=2.0 / curvature.largest_of_a_step(),
    )


class StableSteps:
    """The largest stable step sizes of a problem near a model, for any way to sample.

    The largest is what runs confirm: stable at half of it, unstable at four times
    (docs/make/stable_steps.py). The careful one takes every example at its largest curvature
    anywhere; for least squares the two agree.
    """

    def __init__(self, problem: Problem, params: np.ndarray | None = None) -> None:
        _check_linear(problem)
        self.problem = problem
        self._anywhere = LargestCurvature(problem)
        self._near: CurvatureAt | None = None
        if not isinstance(problem.loss, LeastSquares) and problem.num_params <= MOST_PARAMS:
            self._near = CurvatureAt(problem, check_model(problem, params))

    def limits(self, algorithm: ISFedAvg, choices: Choices) -> tuple[float, float]:
        """The largest stable step size, and the careful one, for these probabilities."""
        careful = limits_of(self._anywhere.drawn(algorithm, choices)).mean_square
        if self._near is None:
            return careful, careful
        largest = limits_of(self._near.drawn(algorithm, choices)).mean_square
        largest *= 1.0 if algorithm.examples.equal else SHARE_OF_LEARNED
        work = np.median(self.problem.local_steps * self.problem.batch_size)
        if work < FEW_EXAMPLES and not (algorithm.agents.equal and algorithm.examples.equal):
            largest *= SHARE_OF_FEW
        return largest, min(careful, largest)


@checked
def stable_step_size(
    problem: Problem, algorithm: ISFedAvg, *, initial: np.ndarray | None = None
) -> float:
    """A step size at which the algorithm is stable, whatever its own is.

    It is a quarter of the mean-square limit for the probabilities that its policies aim at, the
    smaller of those at the start and at w^o (where it can be computed). For a loss that states no
    curvature it is a tenth of 1 / (largest curvature of the risk at the start), by power iteration.

    Args:
        problem: what is learned.
        algorithm: what will run.
        initial: (M,) where it will start; zero unless given.

    Examples:
        >>> from isfed import PAPER, FedAvg
        >>> 0.001 < stable_step_size(PAPER.make(), FedAvg(step_size="auto", num_active=6)) < 0.1
        True
    """
    start = np.zeros(problem.num_params)
    if initial is not None:
        start = check_vector(initial, name="initial", size=problem.num_params)
    if not isinstance(problem.loss, LinearLoss):
        return SHARE_OF_CURVATURE / risk_curvature(problem, start)
    step = SHARE_OF_LIMIT * mean_square_limit(problem, algorithm, start)
    if not algorithm.examples.equal and not isinstance(problem.loss, LeastSquares):
        # Rarely drawn examples at their largest curvature anywhere make too small a limit; but no
        # more than half of what runs confirm.
        uniform = replace(algorithm, agents=Uniform(), examples=Uniform())
        plain = SHARE_OF_LIMIT * mean_square_limit(problem, uniform, start)
        with contextlib.suppress(NoOptimumError):
            largest, _ = StableSteps(problem).limits(algorithm, choices_at(problem, algorithm))
            step = max(step, min(plain, 0.5 * largest))
    return min(step, memory_limit(problem)) if algorithm.correction is not None else step


def mean_square_limit(problem: Problem, algorithm: ISFedAvg, start: np.ndarray) -> float:
    """The smaller of the limits with the probabilities at the start and, where known, at w^o."""
    models = [start]
    if not (algorithm.agents.equal and algorithm.examples.equal):
        with contextlib.suppress(NoOptimumError):
            models.append(problem.optimum)
    return min(
        step_limits(problem, algorithm, choices_at(problem, algorithm, model)).mean_square
        for model in models
    )


def memory_limit(problem: Problem) -> float:
    """The step size up to which memories that are a turn old do no harm, for a linear loss."""
    largest = 0.0
    for agent in range(problem.num_agents):
        x, _ = problem.data.agent(agent)
        wide = x.shape[1] > len(x)
        spectrum = linalg.eigvalsh((x @ x.T if wide else x.T @ x) / len(x))
        curvature = problem.loss.bend * float(spectrum[-1]) + 2.0 * problem.loss.ridge
        largest = max(largest, curvature)
    if not largest > 0.0:
        raise ValueError("the risk has no curvature at all; give a step_size yourself")
    return SHARE_OF_MEMORY / largest


def with_step_size(problem: Problem, algorithm: Any, *, initial: np.ndarray | None = None) -> Any:
    """The algorithm with a number for a step size: `stable_step_size` where it says "auto"."""
    if getattr(algorithm, "step_size", None) != AUTO:
        return algorithm
    inside = getattr(algorithm, "algorithm", None)
    if inside is not None and adds_steps(getattr(algorithm, "server", None)):
        return replace(algorithm, algorithm=with_step_size(problem, inside, initial=initial))
    if not isinstance(algorithm, ISFedAvg):
        raise ValueError(
            f"step_size='auto' is not available for {type(algorithm).__name__}; give a number"
        )
    return replace(algorithm, step_size=stable_step_size(problem, algorithm, initial=initial))


def risk_curvature(problem: Problem, params: np.ndarray) -> float:
    """The largest curvature of the risk at a model, by power iteration on differences of gradients.

    Needs nothing of the loss but its gradient.
    """
    model = check_model(problem, params)
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(model.size)
    here = risk_gradients(problem, model).mean(axis=0)
    length = 1e-4 * (1.0 + float(np.linalg.norm(model)))
    curvature = 0.0
    for _ in range(POWER_STEPS):
        direction /= np.linalg.norm(direction)
        ahead = risk_gradients(problem, model + length * direction).mean(axis=0)
        moved = (ahead - here) / length
        before, curvature = curvature, float(np.linalg.norm(moved))
        if not curvature > 0.0 or abs(curvature - before) < 1e-3 * curvature:
            break
        direction = moved
    if not (math.isfinite(curvature) and curvature > 0.0):
        raise ValueError(
            "the risk has no curvature at the start, so no step size can be derived; give a number"
        )
    return curvature


def _known(algorithm: Any) -> bool:
    """Whether the limits of its step size are known."""
    return isinstance(algorithm, ISFedAvg) and algorithm.client_weights == "uniform"


def explain_divergence(problem: Problem, algorithm: Any) -> str:
    """Which step-size limit a run that diverged had exceeded, and what to do."""
    if not _known(algorithm):
        return "use a smaller step size"
    step = float(algorithm.step_size)
    if not (isinstance(problem.loss, LinearLoss) and problem.has_optimum):
        network = getattr(problem.loss, "without_optimum", False)  # `importance` takes no 'auto'
        return "use a smaller step_size" + ("" if network else ", or step_size='auto'")
    try:
        limits = step_limits(problem, algorithm)
    except ValueError as error:
        return f"{error} (step_size={step:g})"
    memory = memory_limit(problem) if algorithm.correction is not None else math.inf
    for limit, what, remedy in (
        (limits.mean, "the limit of gradient descent with all data", ""),
        (limits.mean_square, "the mean-square limit of this sampling", " or draw more"),
        (memory, "up to which remembered gradients are known to be stable", ", or correction=None"),
    ):
        if step >= limit:
            return f"step_size={step:g} exceeds {limit:.3g}, {what}; use step_size='auto'{remedy}"
    if step < limits.every_draw:
        return f"step_size={step:g} is below every limit that is known; use a smaller one"
    return (
        f"step_size={step:g} is below {limits.mean_square:.3g}, the mean-square limit at w^o, but "
        f"above {limits.every_draw:.3g}, below which no single draw overshoots: probabilities far "
        "from those at w^o make such draws; use a larger floor or a smaller step_size"
    )


class GrowthWarning(RuntimeWarning):
    """A run that did not overflow, but whose error grows."""


def warn_if_growing(
    problem: Problem, algorithm: Any, msd: np.ndarray, *, name: str = "the model"
) -> None:
    """Warn if the msd ends far above where it began and the step size is beyond its limit."""
    part = msd.shape[1] // 10
    known = _known(algorithm) and problem.has_optimum
    if part == 0 or not known or algorithm.drift > 0.0:
        return
    early, late = float(msd[:, :part].mean()), float(msd[:, -part:].mean())
    if late > 10.0 * early and isinstance(problem.loss, LinearLoss):
        limits = step_limits(problem, algorithm)
        if float(algorithm.step_size) >= limits.mean_square:
            warnings.warn(
                f"{name} is diverging, its msd has grown from {early:.2g} to {late:.2g}: "
                f"{explain_divergence(problem, algorithm)}",
                GrowthWarning,
                stacklevel=3,
            )
