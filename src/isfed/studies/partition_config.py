"""How the rows of a data set are dealt to agents, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from isfed.datasets import partition as deals
from isfed.datasets.partition import Partition
from isfed.studies.name_registry import READERS, REGISTRIES, Registry


class Partitioning(Protocol):
    """How rows are dealt to agents."""

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        ...


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Rows dealt at random, equally many to every agent."""

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        return deals.iid(len(labels), num_agents=num_agents, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Every class dealt in shares of its own; the smaller `concentration`, the more unequal."""

    concentration: float = 0.5
    least: int = 1

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        return deals.dirichlet(
            labels, num_agents=num_agents, concentration=self.concentration, least=self.least,
            seed=seed,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OneClass:
    """Every agent holds rows of one class."""

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        return deals.one_class(labels, num_agents=num_agents, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Rows sorted by class and cut into shards, `per_agent` of them to every agent."""

    per_agent: int = 2

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        return deals.shards(labels, num_agents=num_agents, per_agent=self.per_agent, seed=seed)


@dataclass(frozen=True, kw_only=True)
class FewClasses:
    """Every agent holds `per_agent` classes, in amounts with a heavy tail (FedProx's MNIST)."""

    per_agent: int = 2
    spread: float = 2.0
    least: int = 5

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        return deals.few_classes(
            labels, num_agents=num_agents, per_agent=self.per_agent, spread=self.spread,
            least=self.least, seed=seed,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """Rows dealt at random, in amounts with a heavy tail."""

    spread: float = 2.0
    least: int = 1

    def __call__(self, labels: np.ndarray, num_agents: int, seed: int) -> Partition:
        """Which agent gets which row."""
        sizes = deals.power_law_sizes(
            len(labels), num_agents=num_agents, spread=self.spread, least=self.least, seed=seed
        )
        return deals.iid(len(labels), num_agents=num_agents, sizes=sizes, seed=seed)


PARTITIONS = Registry(
    "partition", Partitioning, iid=Iid, dirichlet=Dirichlet, one_class=OneClass, shards=Shards,
    few_classes=FewClasses, power_law=PowerLaw,
)  # fmt: skip
REGISTRIES[Partitioning] = PARTITIONS
READERS[Partitioning] = PARTITIONS.read
