"""What a round tells of its sampling: how large the weights were, and what they bought.

One row of numbers for every round, made by the same compiled functions in both engines.
"""

from __future__ import annotations

import numpy as np

from isfed.base.jit import compiled, jit_inline

# Where everything is drawn with equal chances there is nothing to watch: the caps are then 0.
COLUMNS: tuple[str, ...] = (
    "largest_weight",  # 1 / (K p_k N_k p_n) of an example, the largest of the round; 1 if uniform
    "effective_agents",  # (sum of the agents' weights)^2 / (sum of their squares), at most L
    "agents_at_cap",  # share of the agents drawn whose inclusion probability is 1
    "agents_at_floor",  # share of those that owe half of their probability or more to the floor
    "examples_at_cap",  # the same of the examples drawn
    "examples_at_floor",
    "moment",  # estimate of the second moment of the gradient estimate, times L ...
    "uniform_moment",  # ... and of what it would be under uniform sampling
)
LARGEST, EFFECTIVE, AGENTS_CAP, AGENTS_FLOOR, EXAMPLES_CAP, EXAMPLES_FLOOR, MOMENT, UNIFORM = range(
    len(COLUMNS)
)
NEARLY_ONE = 1.0 - 1e-12
# What a turn leaves for its round: largest weight, examples at cap and at floor, and the difference
# between uniform sampling and this in the second moment of the agent's gradient estimate.
TURN = 4


@jit_inline
def start_turn(turn):
    """Nothing seen yet."""
    for i in range(TURN):
        turn[i] = 0.0


@jit_inline
def watch_batch(turn, weight, norms, count, num, floor, capped):
    """Add one batch of a turn; weight is 1 / (N_k p_n), `capped` whether the design has a cap."""
    largest = turn[0]
    at_cap = 0
    at_floor = 0
    difference = 0.0
    at_one = num / (count * NEARLY_ONE) if capped else 0.0  # the weight of inclusion 1 ...
    half_floor = 0.5 / floor if floor > 0.0 else np.inf  # ... and of twice the floor
    for i in range(num):
        share = weight[i]
        largest = share if share > largest else largest
        at_cap += share <= at_one
        at_floor += share >= half_floor
        difference += norms[i] * norms[i] * (share - share * share)
    turn[0] = largest
    turn[1] += at_cap
    turn[2] += at_floor
    turn[3] += difference


@jit_inline
def start_round(row):
    """Nothing seen yet; row[EFFECTIVE] holds the sum of the weights until the round ends."""
    for i in range(row.size):
        row[i] = 0.0


@jit_inline
def watch_agent(row, turn, drawn, square, side, squares):
    """Add one agent: `drawn` its examples, `square` |estimate of its gradient|^2.

    `side` is (K, p_k, how often it was drawn, L, floor, whether the design has a cap); returns the
    sum of the squares of the weights so far.
    """
    num_agents, prob, times, num_active, floor, capped = side
    weight = 1.0 / (num_agents * prob)
    largest = weight * (turn[0] if turn[0] > 0.0 else 1.0)
    row[LARGEST] = largest if largest > row[LARGEST] else row[LARGEST]
    row[EFFECTIVE] += times * weight
    row[AGENTS_CAP] += times if capped and num_active * prob >= NEARLY_ONE else 0.0
    row[AGENTS_FLOOR] += times if prob <= 2.0 * floor / num_agents else 0.0
    row[EXAMPLES_CAP] += turn[1] / drawn
    row[EXAMPLES_FLOOR] += turn[2] / drawn
    row[MOMENT] += times * square * weight * weight
    row[UNIFORM] += times * (square + turn[3] / (drawn * float(drawn))) * weight
    return squares + times * weight * weight


@jit_inline
def end_round(row, num_active, distinct, squares, out):
    """From sums to the means and shares that are kept."""
    out[LARGEST] = row[LARGEST]
    out[EFFECTIVE] = row[EFFECTIVE] * row[EFFECTIVE] / squares
    for column in (AGENTS_CAP, AGENTS_FLOOR, MOMENT, UNIFORM):
        out[column] = row[column] / num_active
    for column in (EXAMPLES_CAP, EXAMPLES_FLOOR):
        out[column] = row[column] / distinct


def uniform_rows(shape: tuple[int, ...], num_active: int) -> np.ndarray:
    """The rows of rounds in which everything is drawn with equal chances."""
    rows = np.zeros((*shape, len(COLUMNS)), np.float32)
    rows[..., LARGEST] = rows[..., MOMENT] = rows[..., UNIFORM] = 1.0
    rows[..., EFFECTIVE] = num_active
    return rows


@compiled
def _watch_round(turns, drawn, step, changes, prob, times, side, out):
    num_agents, num_active, floor, capped = side
    row = np.zeros(out.size)
    squares = 0.0
    for i in range(prob.size):
        change = 0.0
        for j in range(changes.shape[1]):
            change += changes[i, j] * changes[i, j]
        squares = watch_agent(
            row, turns[i], drawn[i], change / (step[i] * step[i]),
            (num_agents, prob[i], times[i], num_active, floor, capped), squares,
        )  # fmt: skip
    end_round(row, num_active, prob.size, squares, out)


class TurnWatch:
    """The telemetry of one agent's turn, for the engine of objects."""

    def __init__(self, count: int, floor: float, *, capped: bool) -> None:
        self.count, self.floor, self.capped = count, floor, capped
        self.turn = np.zeros(TURN)

    def batch(self, weight: np.ndarray, norms: np.ndarray) -> None:
        watch_batch(self.turn, weight, norms, self.count, len(weight), self.floor, self.capped)


def watch_round(
    watch: np.ndarray, changes: np.ndarray, drawn: np.ndarray, reach: np.ndarray,
    chances: tuple[np.ndarray, np.ndarray], side: tuple[int, int, float, bool],
) -> np.ndarray:  # fmt: skip
    """The row of a round, from its turns.

    Args:
        watch: (n, 4) telemetry of the turns.
        changes: (n, M) what the agents changed; over `reach` it estimates a gradient.
        drawn: (n,) examples drawn.
        reach: (n,) sizes of the whole steps.
        chances: (n,) p_k, and how often each was drawn.
        side: (K, L, floor, whether the design has a cap).
    """
    out = np.zeros(len(COLUMNS), np.float32)
    prob, times = chances
    if prob.size:  # a design of random size may draw nobody
        _watch_round(watch, drawn, reach, changes, prob, times, side, out)
    return out
