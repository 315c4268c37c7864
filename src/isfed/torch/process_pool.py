"""Turns of one round in several processes: the same numbers, sooner.

A `TurnWorker` holds the module and data of agents. What an agent remembers travels with its turn,
so that any worker can take it and the result does not depend on how many there are. Here workers
are processes of this machine, in `ray_pool` actors on several. Arrays cross in a file that all
processes map, in memory where possible: through a pipe they would be copied four times.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from isfed.base.temporary_folders import HeldFolder, remove_abandoned
from isfed.federation.agents import LocalOptions, TrainRequest, Uploads
from isfed.problems import FederatedData, Problem

PREFIX, SHARED_PREFIX = "isfed-pool-", "isfed-mail-"
MEMORY = Path("/dev/shm")  # a folder of files that are never written to a disk, on Linux
ALIGN = 64
PROBLEM = "problem.joblib"


class TurnBlock(NamedTuple):
    """Turns of one round, with all that they need."""

    turns: TrainRequest
    round_index: int
    local: LocalOptions
    nodes: dict[int, np.ndarray]  # the score tables of these agents, where they have any
    memory: dict[int, np.ndarray]
    group: int | None  # how many are taken at once

    def rows(self, rows: Any) -> TurnBlock:
        """Some of the turns."""
        agents, params, step = self.turns
        some = TrainRequest(agents[rows], params if params.ndim == 1 else params[rows], step[rows])
        which = set(some.agents.tolist())
        nodes, memory = (
            {k: kept[k] for k in kept.keys() & which} for kept in (self.nodes, self.memory)
        )
        return TurnBlock(some, self.round_index, self.local.rows(rows), nodes, memory, self.group)


class BlockResult(NamedTuple):
    """What the turns of a block give."""

    uploads: Uploads
    nodes: dict[int, np.ndarray]
    memory: dict[int, np.ndarray]
    turn_losses: dict[int, float]
    trouble: str


# The turns of a block in this process, into the last argument.
Here = Callable[[TrainRequest, int, LocalOptions, np.ndarray], Uploads]


class AgentData(NamedTuple):
    """The data of consecutive agents, and how much they work."""

    first: int  # the number of the first one
    data: FederatedData
    local_steps: np.ndarray
    batch_size: np.ndarray

    @classmethod
    def of(cls, problem: Problem, first: int = 0, end: int | None = None) -> AgentData:
        """The agents from `first` to `end`, or all of them."""
        data, some = problem.data, slice(first, end)
        if (first, end) == (0, None):
            return cls(0, data, problem.local_steps, problem.batch_size)
        offsets = data.offsets[first : None if end is None else end + 1]
        rows = slice(int(offsets[0]), int(offsets[-1]))
        part = FederatedData(data.features[rows], data.targets[rows], offsets - offsets[0])
        return cls(first, part, problem.local_steps[some], problem.batch_size[some])


class TurnWorker:
    """Takes turns of the agents whose data it gets; behind every pool.

    Args:
        settings: what `settings_of` gives.
    """

    def __init__(self, settings: bytes) -> None:
        torch.set_num_threads(1)
        self.loss, self.name, self.rules, self.address = pickle.loads(settings)
        self.parts: dict[Any, Any] = {}  # the agents of every part of the data that it holds

    def hold(self, part: Any, given: AgentData) -> None:
        """Hold the agents of a part of the data."""
        first, data, *work = given
        steps, batch_size = map(np.asarray, work)
        problem = Problem(data, self.loss, steps, batch_size, self.name)
        agents = self.parts[part] = self.loss.make_agents(problem, self.rules, **self.address)
        agents.first = first

    def take(self, part: Any, block: TurnBlock, changes: np.ndarray) -> BlockResult:
        """The turns of agents of one part, from what they remember."""
        agents = self.parts[part]
        first, turns = agents.first, block.turns
        agents.memory = {k - first: kept.copy() for k, kept in block.memory.items()}
        agents.turn_losses, agents.trouble, agents.group = {}, "", block.group
        for k, nodes in block.nodes.items():
            agents.table(k - first).nodes[:] = nodes
        turns = turns._replace(agents=turns.agents - first)
        uploads = agents.take_turns(turns, block.round_index, block.local, changes)
        nodes = {k: agents.table(k - first).nodes for k in block.nodes}
        memory = {k + first: kept for k, kept in agents.memory.items()}
        losses = {k + first: loss for k, loss in agents.turn_losses.items()}
        return BlockResult(uploads, nodes, memory, losses, agents.trouble)


def settings_of(problem: Problem, rules: Any, address: dict[str, int]) -> bytes:
    """What a worker needs beside data, by value: a module may be made by a lambda."""
    import cloudpickle

    return cloudpickle.dumps((problem.loss, problem.name, rules, address))


def _serve(pipe: Connection, folder: str) -> None:
    """What a process does: answer requests until the other end of the pipe is closed."""
    import joblib

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    worker, path, shared = None, "", np.empty(0, np.uint8)
    with suppress(EOFError, ConnectionError):
        while True:
            file, data, places, rows = pipe.recv()
            try:
                if worker is None:  # the data are one file that all processes map
                    settings, given = joblib.load(Path(folder) / PROBLEM, mmap_mode="r")
                    worker = TurnWorker(settings)
                    worker.hold(0, given)
                if file != path:
                    path, shared = file, _mapped(file)
                block, changes = pickle.loads(data, buffers=[shared[place] for place in places])
                result = worker.take(0, block.rows(rows), changes[rows])
                uploads = result.uploads._replace(changes=np.empty(0))  # they are where they belong
                reply: Any = result._replace(uploads=uploads)
            except Exception as error:  # is raised at the other end
                own = type(error).__module__ != "builtins"  # which may not survive the pipe
                reply = RuntimeError(f"{type(error).__name__}: {error}") if own else error
            pipe.send(reply)


class Pool:
    """Processes that take turns; closed when it is collected.

    Each has a pipe of its own: an executor's threads would compete with the turns of this process.
    """

    def __init__(self, problem: Any, rules: Any, processes: int, address: dict[str, int]) -> None:
        import joblib
        from joblib.externals.loky.backend import get_context

        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.shared: HeldFolder | None = None  # with the file of `bytes`, for one round's arrays
        self.bytes, self.path = np.empty(0, np.uint8), ""
        remove_abandoned(PREFIX)
        self.folder = HeldFolder(PREFIX)
        parts = (settings_of(problem, rules, address), AgentData.of(problem))
        joblib.dump(parts, self.folder.path / PROBLEM)
        context: Any = get_context("loky")  # unlike "spawn" it does not run the user's script again
        for _ in range(processes):
            here, there = context.Pipe()
            args = (there, str(self.folder.path))
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def take(self, block: TurnBlock, changes: np.ndarray, here: Here) -> list[tuple[Any, Any]]:
        """The turns of a block, shared with this process; fills `changes`.

        Returns the rows of the block that each result is of.
        """
        group = block.group or 1  # turns that are taken at once stay together
        count = block.turns.agents.size
        edges = np.linspace(0, -(-count // group), len(self.pipes) + 2).astype(int) * group
        # This process also joins the parts, so that its own is the smallest: the first.
        ends = pairwise(np.minimum(edges, count).tolist())
        rows = [slice(begin, end) for begin, end in ends if end > begin]
        first = rows[0].stop
        others = [slice(part.start - first, part.stop - first) for part in rows[1:]]
        threads = torch.get_num_threads()
        theirs = self.start(block.rows(slice(first, None)), others)
        try:
            torch.set_num_threads(1)  # other processes use the other cores
            own = here(*block.rows(rows[0])[:3], changes[:first])
        finally:
            torch.set_num_threads(threads)
            results = self.finish(len(others))
        changes[first:] = theirs
        return list(zip(rows, [BlockResult(own, {}, {}, {}, ""), *results], strict=True))

    def start(self, block: TurnBlock, rows: list[slice]) -> np.ndarray:
        """Share turns among the processes; returns where the changes will be, (n, M)."""
        params = block.turns.params
        changes = np.empty((block.turns.agents.size, params.shape[-1]), params.dtype)
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps((block, changes), protocol=5, buffer_callback=buffers.append)
        arrays = [np.asarray(buffer.raw()) for buffer in buffers]
        ends = np.cumsum([-(-array.size // ALIGN) * ALIGN for array in arrays]).tolist()
        begins = [0, *ends[:-1]]
        places = [slice(at, at + array.size) for at, array in zip(begins, arrays, strict=True)]
        self.make_room(ends[-1])
        for place, array in zip(places[:-1], arrays[:-1], strict=True):
            self.bytes[place] = array
        for pipe, some in zip(self.pipes, rows, strict=False):
            with suppress(ConnectionError):  # `finish` will find out
                pipe.send((self.path, data, places, some))
        return self.bytes[places[-1]].view(changes.dtype).reshape(changes.shape)

    def finish(self, count: int) -> list[BlockResult]:
        """What the first `count` processes computed; the changes stay until the next start."""
        try:
            # All replies are read before anything is raised: none must be left in a pipe.
            replies: list[BlockResult | Exception] = [pipe.recv() for pipe in self.pipes[:count]]
        except (EOFError, ConnectionError) as error:
            self.close()
            raise RuntimeError(
                "a process that takes turns of the agents has ended: it was killed, or there was "
                "not enough memory. Continue from a checkpoint if there is one; threads=1 needs "
                "less memory"
            ) from error
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies  # type: ignore[return-value]

    def make_room(self, size: int) -> None:
        """Have room for `size` shared bytes, in another file if need be."""
        if size <= self.bytes.size:
            return
        self.shared, self.bytes = None, np.empty(0, np.uint8)  # removes the file before
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * size
        parent = MEMORY if in_memory else None
        remove_abandoned(SHARED_PREFIX, parent)
        self.shared = HeldFolder(SHARED_PREFIX, parent)
        # Another name for every size: a process that has the old file maps the new one.
        self.path = str(self.shared.path / str(size))
        with open(self.path, "wb") as file:
            if hasattr(os, "posix_fallocate"):  # or writing would be fatal where there is no room
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        self.bytes = _mapped(self.path)

    def close(self) -> None:
        """End the processes, and remove what they shared."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.terminate()
            process.join()
        self.pipes, self.processes = [], []
        self.bytes = np.empty(0, np.uint8)  # arrays that are still in use keep their memory
        for folder in (self.shared, self.folder):
            if folder is not None:
                folder.close()

    def __del__(self) -> None:
        if hasattr(self, "folder"):
            self.close()


def _mapped(path: str) -> np.ndarray:
    return np.asarray(np.memmap(path, np.uint8, mode="r+"))
