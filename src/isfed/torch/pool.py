"""Turns of one round in several processes: the same numbers, sooner.

A process holds the problem and one module. What an agent remembers travels with its turn, so that
any process can take it and the result does not depend on how many there are.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isfed.federation.agents import Local, Turns, Uploads

_HERE: dict[str, Any] = {}  # of a worker process: its agents


class Block(NamedTuple):
    """The turns of one process."""

    turns: Turns
    round_index: int
    local: Local
    nodes: dict[int, np.ndarray]  # the score tables of these agents, where they have any
    memory: dict[int, np.ndarray]


class Done(NamedTuple):
    """What a process sends back."""

    uploads: Uploads
    nodes: dict[int, np.ndarray]
    memory: dict[int, np.ndarray]
    told: dict[int, float]
    trouble: str


def _begin(folder: str, address: dict[str, int]) -> None:
    """Load the problem; its data are one file that all processes map."""
    import joblib
    import torch

    torch.set_num_threads(1)
    problem, rules = joblib.load(Path(folder) / "problem.joblib", mmap_mode="r")
    _HERE["agents"] = problem.loss.make_agents(problem, rules, **address)


def _work(block: Block) -> Done:
    """The turns of a block, from what its agents remember."""
    agents = _HERE["agents"]
    agents.memory = dict(block.memory)
    agents.told, agents.trouble = {}, ""
    for k, nodes in block.nodes.items():
        agents.table(k).nodes[:] = nodes
    uploads = agents.work(block.turns, block.round_index, block.local)
    # In the model's type, in which they were computed: half the bytes, and the same numbers.
    uploads = uploads._replace(changes=uploads.changes.astype(agents.type))
    nodes = {k: agents.table(k).nodes for k in block.nodes}
    return Done(uploads, nodes, agents.memory, agents.told, agents.trouble)


class Pool:
    """Processes that take turns; closed when it is collected."""

    def __init__(self, problem: Any, rules: Any, workers: int, address: dict[str, int]) -> None:
        import joblib
        from joblib.externals.loky import ProcessPoolExecutor

        self.workers = workers
        self.folder = tempfile.TemporaryDirectory(
            prefix="isfed-pool-",
            ignore_cleanup_errors=True,  # Windows removes no file that a process still maps
        )
        joblib.dump((_Sent(problem), rules), Path(self.folder.name) / "problem.joblib")
        self.processes = ProcessPoolExecutor(
            workers, initializer=_begin, initargs=(self.folder.name, address)
        )

    def work(self, blocks: list[Block]) -> list[Done]:
        """All blocks, one per process."""
        return list(self.processes.map(_work, blocks))

    def __del__(self) -> None:
        processes = getattr(self, "processes", None)
        if processes is not None:
            processes.shutdown(wait=False, kill_workers=True)


class _Sent:
    """A problem whose loss is pickled by value, and whose arrays are written plainly.

    By value: a module made by a lambda or in __main__ must get there too.
    """

    def __init__(self, problem: Any) -> None:
        self.problem = problem

    def __reduce__(self) -> tuple:
        import cloudpickle

        problem = self.problem
        data = problem.data
        parts = (data.features, data.targets, data.offsets, problem.local_steps, problem.batch_size)
        return _received, (cloudpickle.dumps(problem.loss), parts, problem.name)


def _received(loss: bytes, parts: tuple, name: str) -> Any:
    import pickle

    from isfed.problems import FederatedData, Problem

    features, targets, offsets, steps, batch = parts
    for array in (features, targets):
        array.flags.writeable = False
    data = FederatedData(features, targets, np.asarray(offsets))
    return Problem(data, pickle.loads(loss), np.asarray(steps), np.asarray(batch), name)


def part_of(turns: Turns, local: Local, rows: slice) -> tuple[Turns, Local]:
    """Some of the turns of a round, and how they step."""
    params = turns.params if turns.params.ndim == 1 else turns.params[rows]
    cut = {
        name: None if getattr(local, name) is None else getattr(local, name)[rows]
        for name in ("steps", "correction", "velocity")
    }
    return Turns(turns.agents[rows], params, turns.step[rows]), replace(local, **cut)


def joined(parts: list[Uploads]) -> Uploads:
    """The uploads of all turns, in their order."""
    found = Uploads(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return found._replace(changes=found.changes.astype(np.float64, copy=False))
