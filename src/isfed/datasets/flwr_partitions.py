"""Partitioners of flwr-datasets as partitions of ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from isfed.datasets.partition import Partition


def from_flwr(partitioner: Any, **columns: Any) -> Partition:
    """The rows that a partitioner of flwr-datasets deals to each of its agents.

    partitioner: e.g. DirichletPartitioner(num_partitions=20, partition_by="label", alpha=0.1).
    columns: what it deals by, e.g. label=targets; all of one length.

    Rows that it gives to nobody, or to several, are an error: every row goes to one agent.
    """
    try:
        from datasets import Dataset  # type: ignore[import-not-found]
    except ImportError as error:
        raise ImportError("from_flwr needs: pip install flwr-datasets") from error
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"the columns must be of one length, got {lengths}")
    count = next(iter(lengths.values()))
    given = {name: np.asarray(values).tolist() for name, values in columns.items()}
    partitioner.dataset = Dataset.from_dict({**given, "isfed-row": list(range(count))})
    parts = [
        np.asarray(partitioner.load_partition(k)["isfed-row"], np.int64)
        for k in range(partitioner.num_partitions)
    ]
    empty = [k for k, part in enumerate(parts) if not part.size]
    if empty:
        raise ValueError(f"{type(partitioner).__name__} leaves agent {empty[0]} without examples")
    rows = np.concatenate(parts)
    if np.unique(rows).size != rows.size or rows.size != count:
        raise ValueError(
            f"{type(partitioner).__name__} deals {rows.size} rows of {count}, "
            f"{np.unique(rows).size} different ones; every row must go to exactly one agent"
        )
    offsets = np.cumsum([0, *(part.size for part in parts)])
    return Partition(rows, offsets, np.arange(len(parts)))
