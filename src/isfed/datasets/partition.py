"""Partitions: which agent gets which row. Every row goes to exactly one agent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from isfed.base.portable_arithmetic import power
from isfed.base.random_streams import Purpose
from isfed.problems.federated_data import FederatedData


@dataclass(frozen=True, eq=False)
class Partition:
    """Which agent owns which row; agent k owns rows[offsets[k]:offsets[k + 1]].

    Args:
        rows: (N,) the row numbers 0 to N - 1, each once, agent by agent.
        offsets: (K + 1,) where every agent's rows begin, and the end.
        names: (K,) what the agents are called.
        num_rows: Of the data, if some rows belong to nobody; N unless given.

    >>> partition = by_column(np.array(["b", "a", "b"]))
    >>> partition.names.tolist(), partition.rows.tolist(), partition.sizes.tolist()
    (['a', 'b'], [1, 0, 2], [1, 2])
    """

    rows: np.ndarray
    offsets: np.ndarray
    names: np.ndarray
    num_rows: int | None = None

    def __post_init__(self) -> None:
        count = self.rows.size if self.num_rows is None else self.num_rows
        seen = np.bincount(self.rows, minlength=count)
        if seen.size > count or not (seen <= 1).all():
            times = "exactly" if self.num_rows is None else "at most"
            raise ValueError(f"rows must be 0 to {count - 1}, each {times} once")
        if self.offsets.size != len(self.names) + 1 or self.offsets[-1] != self.rows.size:
            raise ValueError(
                f"offsets must lead to {self.rows.size}, the number of rows, in {len(self.names)} "
                "steps, one for each name"
            )

    @property
    def sizes(self) -> np.ndarray:
        """N_k of every agent."""
        return np.diff(self.offsets)

    def federate(self, features: np.ndarray, targets: np.ndarray) -> FederatedData:
        """The data of all agents."""
        count = self.rows.size if self.num_rows is None else self.num_rows
        if len(features) != count or len(targets) != count:
            raise ValueError(
                f"the partition is of {count} rows, but there are {len(features)} rows of "
                f"features and {len(targets)} targets"
            )
        features = np.asarray(features)[self.rows]
        targets = np.asarray(targets)[self.rows]
        features.flags.writeable = False  # FederatedData then takes them as they are
        targets.flags.writeable = False
        return FederatedData(features, targets, self.offsets)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(Purpose.PARTITION),)))


def _from_agents(agent_of_row: np.ndarray, names: np.ndarray) -> Partition:
    """Rows keep their order inside an agent."""
    rows = np.argsort(agent_of_row, kind="stable")
    sizes = np.bincount(agent_of_row, minlength=len(names))
    return Partition(rows, np.concatenate([[0], np.cumsum(sizes)]), names)


def _check_agents(num_rows: int, num_agents: int) -> None:
    if not 1 <= num_agents <= num_rows:
        raise ValueError(f"num_agents={num_agents} must be between 1 and the {num_rows} rows")


def equal_sizes(num_rows: int, *, num_agents: int) -> np.ndarray:
    """Sizes that differ by at most one."""
    _check_agents(num_rows, num_agents)
    return np.diff(np.arange(num_agents + 1) * num_rows // num_agents)


def sizes_in_range(
    num_rows: int, *, num_agents: int, low: int, high: int, seed: int = 0
) -> np.ndarray:
    """Random sizes between `low` and `high`, with exactly `num_rows` in all.

    Uniform draws raised to the power that makes the sum right, so that they fill the range.

    >>> sizes = sizes_in_range(35_000, num_agents=100, low=79, high=688)
    >>> int(sizes.sum()), bool(79 <= sizes.min() and sizes.max() <= 688)
    (35000, True)
    """
    _check_agents(num_rows, num_agents)
    if not 1 <= low <= high:
        raise ValueError(f"low={low}, high={high} must be whole numbers with 1 <= low <= high")
    if not low * num_agents <= num_rows <= high * num_agents:
        raise ValueError(
            f"{num_agents} agents of {low} to {high} rows hold {low * num_agents} to "
            f"{high * num_agents} rows, not {num_rows}; with these sizes num_agents can be "
            f"{-(-num_rows // high)} to {num_rows // low}"
        )
    from scipy.optimize import brentq  # takes a while to import

    drawn = _rng(seed).random(num_agents)

    def spread(exponent: float) -> np.ndarray:
        return low + (high - low) * power(drawn, math.exp(exponent))

    # At -40 all powers are 1 and every size is `high`, at 40 they are 0 and it is `low`.
    exponent: Any = brentq(lambda e: spread(e).sum() - num_rows, -40.0, 40.0, xtol=1e-13)
    return _round_to(spread(exponent), num_rows)


def _round_to(wanted: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers next to `wanted`, summing to `total`: the largest remainders go up."""
    sizes = np.floor(wanted).astype(np.int64)
    up = np.argsort(sizes - wanted, kind="stable")[: total - sizes.sum()]
    sizes[up] += 1
    return sizes


def iid(
    num_rows: int, *, num_agents: int, sizes: np.ndarray | None = None, seed: int = 0
) -> Partition:
    """Rows at random; equal sizes unless given (`sizes_in_range` makes some)."""
    if sizes is None:
        sizes = equal_sizes(num_rows, num_agents=num_agents)
    sizes = np.asarray(sizes)
    if sizes.shape != (num_agents,) or sizes.sum() != num_rows or sizes.min() < 1:
        raise ValueError(
            f"sizes must be {num_agents} whole numbers >= 1 that sum to {num_rows}, got "
            f"{sizes.size} that sum to {sizes.sum()}"
        )
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Partition(_rng(seed).permutation(num_rows), offsets, np.arange(num_agents))


def by_column(column: np.ndarray) -> Partition:
    """One agent for every value of the column, in sorted order."""
    column = np.asarray(column)
    if column.ndim != 1 or column.size == 0:
        raise ValueError(f"the column must be a vector with entries, got shape {column.shape}")
    names, agent_of_row = np.unique(column, return_inverse=True)
    return _from_agents(agent_of_row, names)


def dirichlet(
    labels: np.ndarray, *, num_agents: int, concentration: float, least: int = 1, seed: int = 0
) -> Partition:
    """Label skew: every class is shared among the agents by a Dirichlet draw.

    A small concentration gives an agent few classes, a large one the mix of all. An agent left
    with fewer than `least` rows then gets random rows of the agents that have the most.
    """
    labels = np.asarray(labels)
    _check_agents(labels.size, num_agents)
    if not (np.isfinite(concentration) and concentration > 0.0):
        raise ValueError(f"concentration={concentration} must be a positive number")
    if not 0 < least * num_agents <= labels.size:
        raise ValueError(f"least={least} rows for {num_agents} agents, of {labels.size} rows")
    rng = _rng(seed)
    agent_of_row = np.empty(labels.size, np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_agents, concentration))
        # With a tiny concentration every gamma variate may underflow, and 0/0 is no share.
        shares = shares if np.isfinite(shares).all() else np.eye(num_agents)[rng.choice(num_agents)]
        sizes = _round_to(shares / shares.sum() * rows.size, rows.size)
        agent_of_row[rows] = np.repeat(np.arange(num_agents), sizes)
    _raise_to(agent_of_row, num_agents, least, rng)
    return _from_agents(agent_of_row, np.arange(num_agents))


def _raise_to(agent_of_row: np.ndarray, num_agents: int, least: int, rng) -> None:
    """Give every agent `least` rows, from whoever has the most, in place."""
    sizes = np.bincount(agent_of_row, minlength=num_agents)
    for agent in np.flatnonzero(sizes < least):
        while sizes[agent] < least:
            richest = int(sizes.argmax())
            moved = min(least - sizes[agent], max(1, sizes[richest] - least))
            rows = rng.choice(np.flatnonzero(agent_of_row == richest), moved, replace=False)
            agent_of_row[rows] = agent
            sizes[agent] += moved
            sizes[richest] -= moved


def one_class(
    labels: np.ndarray,
    *,
    num_agents: int,
    shares: Mapping[Any, float] | None = None,
    sizes: tuple[int, int] | None = None,
    seed: int = 0,
) -> Partition:
    """Every agent holds one class only; `shares` says which part of the agents each class gets.

    Without `shares` each class gets agents in proportion to its rows; at least one in any case.
    `sizes` is the range of rows per agent; without it the agents of a class have equal sizes.
    """
    labels = np.asarray(labels)
    _check_agents(labels.size, num_agents)
    classes, counts = np.unique(labels, return_counts=True)
    agents_of = _agents_per_class(classes, counts, shares, num_agents)
    rng = _rng(seed)
    agent_of_row = np.empty(labels.size, np.int64)
    first = 0
    for label, count, agents in zip(classes, counts, agents_of, strict=True):
        try:
            if sizes is None:
                spread = equal_sizes(count, num_agents=agents)
            else:
                seed_of_class = int(rng.integers(2**32))
                spread = sizes_in_range(
                    count, num_agents=agents, low=sizes[0], high=sizes[1], seed=seed_of_class
                )
        except ValueError as error:
            raise ValueError(f"class {label} ({count} rows): {error}") from error
        rows = rng.permutation(np.flatnonzero(labels == label))
        agent_of_row[rows] = first + np.repeat(np.arange(agents), spread)
        first += agents
    return _from_agents(agent_of_row, np.arange(num_agents))


def _agents_per_class(classes, counts, shares, num_agents: int) -> np.ndarray:
    if num_agents < classes.size:
        raise ValueError(f"num_agents={num_agents} is less than the {classes.size} classes")
    if shares is None:
        wanted = counts / counts.sum() * num_agents
    else:
        if set(shares) != set(classes.tolist()):
            raise ValueError(f"shares are of {sorted(shares)}, the classes are {classes.tolist()}")
        wanted = np.array([shares[label] for label in classes.tolist()]) * num_agents
        if not ((wanted > 0.0).all() and abs(wanted.sum() - num_agents) <= 1e-6 * num_agents):
            raise ValueError(f"shares={dict(shares)} must be positive and sum to 1")
    # One agent each first, the others by the largest remainder.
    rest = num_agents - classes.size
    over = np.maximum(wanted - 1.0, 0.0)
    over = over / over.sum() * rest if over.sum() > 0.0 else over
    return 1 + _round_to(over, rest)


def easy_and_hard(
    labels: np.ndarray, *, num_agents: int, easy: int = 2, share: float = 0.8, seed: int = 0
) -> Partition:
    """A `share` of the agents has the first `easy` classes, each of the others one other class.

    The few others have more to teach for longer, which importance sampling can make use of.
    """
    labels = np.asarray(labels)
    classes = np.unique(labels)
    if not 1 <= easy < classes.size:
        raise ValueError(f"easy={easy} must be between 1 and {classes.size - 1} of the classes")
    if not 0.0 < share < 1.0:
        raise ValueError(f"share={share} must be a number between 0 and 1")
    merged = np.where(np.isin(labels, classes[:easy]), classes[0], labels)
    others = classes[easy:].tolist()
    shares = {classes[0].item(): share} | dict.fromkeys(others, (1.0 - share) / len(others))
    return one_class(merged, num_agents=num_agents, shares=shares, seed=seed)


def shards(labels: np.ndarray, *, num_agents: int, per_agent: int = 2, seed: int = 0) -> Partition:
    """Rows sorted by label and cut into equal shards, of which every agent gets `per_agent`.

    The partition of the first paper on FedAvg (McMahan et al. 2017): most agents see only
    `per_agent` classes.
    """
    labels = np.asarray(labels)
    if per_agent < 1:
        raise ValueError(f"per_agent={per_agent} must be at least 1")
    if not 1 <= num_agents * per_agent <= labels.size:
        raise ValueError(
            f"num_agents={num_agents} with per_agent={per_agent} shards need "
            f"{num_agents * per_agent} rows or more, but there are {labels.size}"
        )
    rng = _rng(seed)
    mixed = rng.permutation(labels.size)  # rows of one class come in random order
    by_label = mixed[np.argsort(labels[mixed], kind="stable")]
    agent_of_shard = np.repeat(rng.permutation(num_agents), per_agent)
    agent_of_shard = agent_of_shard[rng.permutation(agent_of_shard.size)]
    sizes = equal_sizes(labels.size, num_agents=agent_of_shard.size)
    agent_of_row = np.empty(labels.size, np.int64)
    agent_of_row[by_label] = np.repeat(agent_of_shard, sizes)
    return _from_agents(agent_of_row, np.arange(num_agents))


def power_law_sizes(
    num_rows: int, *, num_agents: int, spread: float = 2.0, least: int = 1, seed: int = 0
) -> np.ndarray:
    """Sizes with a heavy tail, for `iid`: `least` each, the rest by log-normal shares.

    `spread` is the standard deviation of the shares' logarithm: 0 makes equal sizes, 2 is what
    FedProx and its followers call a power law.

    >>> sizes = power_law_sizes(60_000, num_agents=1000, least=10)
    >>> int(sizes.sum()), int(sizes.min()), bool(sizes.max() > 10 * np.median(sizes))
    (60000, 10, True)
    """
    _check_agents(num_rows, num_agents)
    return _heavy_tail(num_rows, num_agents, spread, least, _rng(seed))


def _heavy_tail(num_rows: int, parts: int, spread: float, least: int, rng) -> np.ndarray:
    if not (np.isfinite(spread) and spread >= 0.0):
        raise ValueError(f"spread={spread} must be a number >= 0")
    if not 1 <= least <= num_rows // parts:
        raise ValueError(f"least={least} rows for each of {parts} parts, of {num_rows} rows")
    shares = rng.lognormal(0.0, spread, parts)
    rest = num_rows - least * parts
    return least + _round_to(shares / shares.sum() * rest, rest)


def few_classes(
    labels: np.ndarray,
    *,
    num_agents: int,
    per_agent: int = 2,
    spread: float = 2.0,
    least: int = 5,
    seed: int = 0,
) -> Partition:
    """Agent k holds the classes k, k + 1, ... (`per_agent` of them), in amounts with a heavy tail.

    FedProx's partition of MNIST (1000 agents, two digits each): every agent has `least` rows of
    each of its classes, the others are shared log-normally, see `power_law_sizes`.
    """
    labels = np.asarray(labels)
    _check_agents(labels.size, num_agents)
    classes = np.unique(labels)
    if not 1 <= per_agent <= classes.size:
        raise ValueError(f"per_agent={per_agent} must be between 1 and the {classes.size} classes")
    if num_agents < classes.size:
        raise ValueError(f"num_agents={num_agents} is less than the {classes.size} classes")
    rng = _rng(seed)
    agent_of_row = np.empty(labels.size, np.int64)
    first_class = np.arange(num_agents) % classes.size
    for place, label in enumerate(classes):
        agents = np.flatnonzero((place - first_class) % classes.size < per_agent)
        rows = rng.permutation(np.flatnonzero(labels == label))
        try:
            sizes = _heavy_tail(rows.size, agents.size, spread, least, rng)
        except ValueError as error:
            raise ValueError(f"class {label}: {error}") from error
        agent_of_row[rows] = np.repeat(agents, sizes)
    return _from_agents(agent_of_row, np.arange(num_agents))


def from_flwr(partitioner: Any, **columns: Any) -> Partition:
    """The rows that a partitioner of flwr-datasets deals to each of its agents.

    Args:
        partitioner: E.g. DirichletPartitioner(num_partitions=20, partition_by="label", alpha=0.1).
        columns: What it deals by, e.g. label=targets; all of one length.

    Rows that it gives to nobody are left out, with a warning (ShardPartitioner and
    PathologicalPartitioner may do so); a row that it gives to several agents is an error.
    """
    try:
        from datasets import Dataset  # type: ignore[import-not-found]
    except ImportError as error:
        raise ImportError("from_flwr needs: pip install flwr-datasets") from error
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"the columns must be of one length, got {lengths}")
    name, count = type(partitioner).__name__, next(iter(lengths.values()))
    given = {name: np.asarray(values).tolist() for name, values in columns.items()}
    partitioner.dataset = Dataset.from_dict({**given, "isfed-row": list(range(count))})
    parts = [
        np.asarray(partitioner.load_partition(k)["isfed-row"], np.int64)
        for k in range(partitioner.num_partitions)
    ]
    empty = [k for k, part in enumerate(parts) if not part.size]
    if empty:
        raise ValueError(f"{name} leaves agent {empty[0]} without examples")
    rows = np.concatenate(parts)
    different = np.unique(rows).size
    if different != rows.size:
        raise ValueError(
            f"{name} deals {rows.size} rows of which only {different} are different; a row may go "
            "to one agent only"
        )
    if different < count:
        warnings.warn(
            f"{name} leaves out {count - different} of {count} rows; they are not used",
            stacklevel=2,
        )
    offsets = np.cumsum([0, *(part.size for part in parts)])
    return Partition(rows, offsets, np.arange(len(parts)), count)
