"""Turns of one round in several processes: the same numbers, sooner.

A process holds the problem and one module. What an agent remembers travels with its turn, so that
any process can take it and the result does not depend on how many there are. Models, corrections
and changes cross in memory that all of them see, the rest through pipes.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isfed.base.temporary_folders import HeldFolder, remove_abandoned
from isfed.federation.agents import Local, Turns, Uploads
from isfed.torch.shared_arrays import Mailbox, Place, received, space

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


def _begin(folder: str, address: dict[str, int]) -> Any:
    """The agents of this process; the data are one file that all processes map."""
    import joblib
    import torch

    torch.set_num_threads(1)
    problem, rules = joblib.load(Path(folder) / "problem.joblib", mmap_mode="r")
    return problem.loss.make_agents(problem, rules, **address)


def _work(agents: Any, block: Block) -> Done:
    """The turns of a block, from what its agents remember."""
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


def _serve(pipe: Connection, folder: str, address: dict[str, int]) -> None:
    """What a process does: blocks come, what they gave goes, until nobody is at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    agents = None
    with suppress(EOFError, ConnectionError):
        while True:
            block = pipe.recv()
            try:
                agents = agents or _begin(folder, address)
                found: Done | Exception = _work(agents, block)
            except Exception as error:  # is raised at the other end
                own = type(error).__module__ != "builtins"  # which may not survive the pipe
                found = RuntimeError(f"{type(error).__name__}: {error}") if own else error
            pipe.send(found)


class Pool:
    """Processes that take turns; closed when it is collected.

    Each has a pipe of its own: an executor's threads would compete with the turns of this process.
    """

    def __init__(self, problem: Any, rules: Any, processes: int, address: dict[str, int]) -> None:
        import joblib
        from joblib.externals.loky.backend import get_context

        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.mailbox = Mailbox()
        remove_abandoned(PREFIX)
        self.folder = HeldFolder(PREFIX)
        joblib.dump((_Sent(problem), rules), self.folder.path / "problem.joblib")
        context = get_context("loky")  # unlike "spawn" it does not run the user's script again
        for _ in range(processes):
            here, there = context.Pipe()
            args = (there, str(self.folder.path), address)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def start(self, blocks: list[Block], dtype: np.dtype) -> list[np.ndarray]:
        """Send every block to a process; returns where the changes will be, in `dtype`."""
        box = self.mailbox
        box.clear(sum(_space(block, dtype) for block in blocks))
        shared: dict[int, Place] = {}  # one model for all is sent once
        places = []
        for pipe, block in zip(self.pipes, blocks, strict=False):
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
            with suppress(ConnectionError):  # `finish` will find out
                pipe.send(light)
            places.append(box.array(light.changes))
        return places

    def finish(self, places: list[np.ndarray]) -> list[Done]:
        """What the processes found; the changes are there until the next start."""
        found: list[Done | Exception] = []
        try:
            # Everybody is heard before anything is raised: a reply must not be left in a pipe.
            found.extend(pipe.recv() for pipe, _ in zip(self.pipes, places, strict=False))
        except (EOFError, ConnectionError) as error:
            self.close()
            raise RuntimeError(
                "a process that takes turns of the agents has ended: it was killed, or there was "
                "not enough memory. Continue from a checkpoint if there is one; threads=1 needs "
                "less memory"
            ) from error
        done = []
        for one, changes in zip(found, places, strict=True):
            if isinstance(one, Exception):
                raise one
            done.append(one._replace(uploads=one.uploads._replace(changes=changes)))
        return done

    def close(self) -> None:
        """End the processes, and remove what they shared."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.terminate()
            process.join()
        self.pipes, self.processes = [], []
        self.mailbox.close()
        self.folder.close()

    def __del__(self) -> None:
        if hasattr(self, "folder"):
            self.close()


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
    return Turns(turns.agents[rows], params, turns.step[rows]), local.rows(rows)


def joined(parts: list[Uploads], changes: np.ndarray) -> Uploads:
    """The uploads of all turns, in their order; their changes are joined already."""
    _, *columns = zip(*parts, strict=True)
    return Uploads(changes, *map(np.concatenate, columns))
