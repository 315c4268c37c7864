"""Turns of one round in several processes: the same numbers, sooner.

A process holds the problem and one module. What an agent remembers travels with its turn, so that
any process can take it and the result does not depend on how many there are. Arrays cross in a file
that all processes map, in memory where possible: through a pipe they would be copied four times.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isfed.base.temporary_folders import HeldFolder, remove_abandoned
from isfed.federation.agents import LocalOptions, TrainRequest, Uploads
from isfed.problems import Problem

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

    def rows(self, rows: slice) -> TurnBlock:
        """Some of the turns."""
        agents, params, step = self.turns
        some = TrainRequest(agents[rows], params if params.ndim == 1 else params[rows], step[rows])
        which = set(some.agents.tolist())
        nodes, memory = (
            {k: kept[k] for k in kept.keys() & which} for kept in (self.nodes, self.memory)
        )
        return TurnBlock(some, self.round_index, self.local.rows(rows), nodes, memory, self.group)


class BlockResult(NamedTuple):
    """What a process sends back; the changes are in the shared memory."""

    uploads: Uploads
    nodes: dict[int, np.ndarray]
    memory: dict[int, np.ndarray]
    turn_losses: dict[int, float]
    trouble: str


def _make_agents(folder: str, address: dict[str, int]) -> Any:
    """The agents of this process; the data are one file that all processes map."""
    import joblib
    import torch

    torch.set_num_threads(1)
    data, loss, steps, batch, name, rules = joblib.load(Path(folder) / PROBLEM, mmap_mode="r")
    problem = Problem(data, pickle.loads(loss), np.asarray(steps), np.asarray(batch), name)
    return problem.loss.make_agents(problem, rules, **address)


def _take_block(agents: Any, block: TurnBlock, changes: np.ndarray) -> BlockResult:
    """The turns of a block, from what its agents remember."""
    agents.memory, agents.turn_losses, agents.trouble = dict(block.memory), {}, ""
    agents.group = block.group
    for k, nodes in block.nodes.items():
        agents.table(k).nodes[:] = nodes
    uploads = agents.take_turns(block.turns, block.round_index, block.local, changes)
    nodes = {k: agents.table(k).nodes for k in block.nodes}
    uploads = uploads._replace(changes=np.empty(0))
    return BlockResult(uploads, nodes, agents.memory, agents.turn_losses, agents.trouble)


def _serve(pipe: Connection, folder: str, address: dict[str, int]) -> None:
    """What a process does: answer requests until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one decides
    agents, path, shared = None, "", np.empty(0, np.uint8)
    with suppress(EOFError, ConnectionError):
        while True:
            file, data, places, rows = pipe.recv()
            try:
                agents = agents or _make_agents(folder, address)
                if file != path:
                    path, shared = file, _mapped(file)
                block, changes = pickle.loads(data, buffers=[shared[place] for place in places])
                reply: Any = _take_block(agents, block.rows(rows), changes[rows])
            except Exception as error:  # is raised at the other end
                own = type(error).__module__ != "builtins"  # which may not survive the pipe
                reply = RuntimeError(f"{type(error).__name__}: {error}") if own else error
            pipe.send(reply)


class Pool:
    """Processes that take turns; closed when it is collected.

    Each has a pipe of its own: an executor's threads would compete with the turns of this process.
    """

    def __init__(self, problem: Any, rules: Any, processes: int, address: dict[str, int]) -> None:
        import cloudpickle
        import joblib
        from joblib.externals.loky.backend import get_context

        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.shared: HeldFolder | None = None  # with the file of `bytes`, for one round's arrays
        self.bytes, self.path = np.empty(0, np.uint8), ""
        remove_abandoned(PREFIX)
        self.folder = HeldFolder(PREFIX)
        # By value: a module made by a lambda or in __main__ must get there too.
        loss, work = cloudpickle.dumps(problem.loss), (problem.local_steps, problem.batch_size)
        parts = (problem.data, loss, *work, problem.name, rules)
        joblib.dump(parts, self.folder.path / PROBLEM)
        context: Any = get_context("loky")  # unlike "spawn" it does not run the user's script again
        for _ in range(processes):
            here, there = context.Pipe()
            args = (there, str(self.folder.path), address)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

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
