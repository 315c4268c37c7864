"""Partitioners of flwr-datasets as partitions of ours."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from isfed.datasets.partition import Partition


def from_flwr(partitioner: Any, **columns: Any) -> Partition:
    """The rows that a partitioner of flwr-datasets deals to each of its agents.

    partitioner: e.g. DirichletPartitioner(num_partitions=20, partition_by="label", alpha=0.1).
    columns: what it deals by, e.g. label=targets; all of one length.

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
    name, different = type(partitioner).__name__, np.unique(rows).size
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
