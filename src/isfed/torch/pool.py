"""Turns of one round in several processes: the same numbers, sooner.

A process holds the problem and one module. What an agent remembers travels with its turn, so that
any process can take it and the result does not depend on how many there are. Models, corrections
and changes cross in memory that all of them see, the rest through pipes.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isfed.base.folders import HeldFolder, remove_abandoned
from isfed.federation.agents import Local, Turns, Uploads
from isfed.torch.mailbox import Mailbox, Place, received, space

_HERE: dict[str, Any] = {}  # of a worker process: its agents
NOTHING = np.empty(0)
PREFIX = "isfed-pool-"


class Block(NamedTuple):
    """The turns of one process; large arrays are in the mailbox."""

    turns: Turns
    round_index: int
    local: Local
    nodes: dict[int, np.ndarray]  # the score tables of these agents, where they have any
    memory: dict[int, np.ndarray]
    params: Place | None = None
    correction: Place | None = None
    changes: Place | None = None  # where they are to go


class Done(NamedTuple):
    """What a process sends back; its changes are in the mailbox."""

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
    assert block.params is not None
    assert block.changes is not None
    turns, local = block.turns._replace(params=received(block.params)), block.local
    if block.correction is not None:
        local = replace(local, correction=received(block.correction))
    uploads = agents.take_turns(turns, block.round_index, local, received(block.changes))
    nodes = {k: agents.table(k).nodes for k in block.nodes}
    uploads = uploads._replace(changes=NOTHING)
    return Done(uploads, nodes, agents.memory, agents.told, agents.trouble)


class Pool:
    """Processes that take turns; closed when it is collected."""

    def __init__(self, problem: Any, rules: Any, processes: int, address: dict[str, int]) -> None:
        import joblib
        from joblib.externals.loky import ProcessPoolExecutor

        self.mailbox = Mailbox()
        remove_abandoned(PREFIX)
        self.folder = HeldFolder(PREFIX)
        joblib.dump((_Sent(problem), rules), self.folder.path / "problem.joblib")
        self.processes = ProcessPoolExecutor(
            processes, initializer=_begin, initargs=(str(self.folder.path), address)
        )

    def start(self, blocks: list[Block], dtype: np.dtype) -> list[Started]:
        """Send every block to a process; changes come back in `dtype`, the model's."""
        box = self.mailbox
        box.clear(sum(_space(block, dtype) for block in blocks))
        shared: dict[int, Place] = {}  # one model for all is sent once
        started = []
        for block in blocks:
            params, correction = block.turns.params, block.local.correction
            if id(params) not in shared:
                shared[id(params)] = box.send(params)
            shape = (block.turns.agents.size, params.shape[-1])
            light = Block(
                block.turns._replace(params=NOTHING),
                block.round_index,
                replace(block.local, correction=None),
                block.nodes,
                block.memory,
                shared[id(params)],
                None if correction is None else box.send(correction),
                box.reserve(shape, dtype),
            )
            assert light.changes is not None
            with self._unbroken():
                future = self.processes.submit(_work, light)
            started.append(Started(future, box.array(light.changes)))
        return started

    def finish(self, started: list[Started]) -> list[Done]:
        """What the processes found; the changes are there until the next start."""
        with self._unbroken():
            done = [one.future.result() for one in started]
        pairs = zip(done, started, strict=True)
        return [d._replace(uploads=d.uploads._replace(changes=s.changes)) for d, s in pairs]

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Say what happened if a process is gone, and leave nothing behind."""
        try:
            yield
        except BrokenProcessPool as error:
            self.close()
            raise RuntimeError(
                "a process that takes turns of the agents has ended: it was killed, or there was "
                "not enough memory. Continue from a checkpoint if there is one; threads=1 needs "
                "less memory"
            ) from error

    def close(self) -> None:
        """End the processes, and remove what they shared."""
        self.processes.shutdown(wait=False, kill_workers=True)
        self.mailbox.close()
        self.folder.close()

    def __del__(self) -> None:
        if hasattr(self, "processes"):
            self.close()


class Started(NamedTuple):
    """A block at work."""

    future: Any
    changes: np.ndarray


def _space(block: Block, dtype: np.dtype) -> int:
    """The bytes that a block takes in the mailbox at most."""
    params, correction = block.turns.params, block.local.correction
    size = space(params.shape, params.dtype)
    size += space((block.turns.agents.size, params.shape[-1]), dtype)
    return size + (0 if correction is None else space(correction.shape, correction.dtype))


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


def joined(parts: list[Uploads], changes: np.ndarray) -> Uploads:
    """The uploads of all turns, in their order; their changes are joined already."""
    _, *columns = zip(*parts, strict=True)
    return Uploads(changes, *map(np.concatenate, columns))
