"""Turns of one round by Ray's actors, on one machine or several: the same numbers, sooner.

An actor is a `TurnWorker` with a share of the data. A round's model goes into Ray's object store
once, and from there once to every node. An actor that is lost, alone or with its node, costs its
turns of that round: others take them again, or this process if none is left.
"""

from __future__ import annotations

import platform
import warnings
from collections import OrderedDict
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np

from isfed.base.ray_cluster import connect_ray
from isfed.problems import Problem
from isfed.torch.process_pool import (
    AgentData,
    BlockResult,
    Here,
    TurnBlock,
    TurnWorker,
    settings_of,
)

PARTS = 4  # parts of the data per actor: what it fetches beyond its own is small
START = 300.0  # seconds that actors have to start: a busy machine took more than 120
MOST_LOSSES = 3  # in a row, without a turn in between: the next actor would be lost too
SAME = ("isfed", "torch", "numpy")  # versions on which numbers may depend


class RayWorker(TurnWorker):
    """A worker that keeps its own parts of the data, and as much again of what it fetched."""

    def __init__(self, settings: bytes, own: dict[int, Any]) -> None:
        super().__init__(settings)
        self.own, self.fetched = set(own), OrderedDict[int, None]()
        import ray  # pyright: ignore[reportMissingImports]

        for part, reference in own.items():
            self.hold(part, ray.get(reference))

    def versions(self) -> dict[str, str]:
        """What numbers may depend on, and where this is."""
        return {**_versions(), "node": platform.node()}

    def turns(
        self, params: np.ndarray, blocks: list[tuple[int, Any, TurnBlock]]
    ) -> list[BlockResult]:
        """The turns of a round, part by part, each with a reference to its data."""
        import ray  # pyright: ignore[reportMissingImports]

        results = []
        for part, reference, block in blocks:
            if part not in self.parts:
                self.hold(part, ray.get(reference[0]))
            if part not in self.own:
                self.fetched[part] = None
                self.fetched.move_to_end(part)
                while len(self.fetched) > len(self.own):
                    del self.parts[self.fetched.popitem(last=False)[0]]
            turns = block.turns
            if turns.params.size == 0:
                block = block._replace(turns=turns._replace(params=params))
            changes = np.empty((turns.agents.size, params.shape[-1]))
            result = self.take(part, block, changes)
            uploads = result.uploads._replace(changes=changes.astype(params.dtype))
            results.append(result._replace(uploads=uploads))
        return results


def _versions() -> dict[str, str]:
    return {"Python": platform.python_version(), **{name: version(name) for name in SAME}}


class RayPool:
    """Actors that take turns; closed when it is collected.

    Args:
        problem: whose data the actors share.
        rules: of the agents.
        workers: how many actors, one per processor of the cluster unless given.
        address: of the random numbers.
    """

    def __init__(
        self, problem: Problem, rules: Any, workers: int | None, address: dict[str, int]
    ) -> None:
        self.mine = connect_ray(workers)
        import ray  # pyright: ignore[reportMissingImports]

        self.ray, self.actors, self.coming = ray, {}, {}
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < (workers or 1):
            self.close()
            raise ValueError(
                f"threads={workers or 1} actors, but the Ray cluster has {there} processors; give "
                "fewer threads, or add nodes by `ray start --address`"
            )
        self.count = workers or there
        self.settings = ray.put(settings_of(problem, rules, address))
        edges = self._edges(problem, min(PARTS * self.count, problem.num_agents))
        # In a list a reference stays one; alone, as an argument, it becomes what it refers to.
        self.data = [[ray.put(AgentData.of(problem, a, b))] for a, b in pairwise(edges)]
        self.part_of = np.repeat(np.arange(len(self.data)), np.diff(edges))  # (K,)
        self.losses = 0  # of actors, since the last turn
        for place in range(self.count):
            self._start(place)
        self._await_all()

    @staticmethod
    def _edges(problem: Problem, parts: int) -> list[int]:
        """The first agents of the parts: about as many rows in each, and one agent at least."""
        rows = np.linspace(0, problem.data.offsets[-1], parts + 1)
        edges = np.searchsorted(problem.data.offsets, rows)
        edges = np.maximum.accumulate(np.maximum(edges, np.arange(parts + 1)))
        last = problem.num_agents - np.arange(parts, -1, -1)
        return np.minimum(edges, last).tolist()

    def _start(self, place: int) -> None:
        """Begin to start the actor of a place; it is used once it has answered."""
        own = {i: part[0] for i, part in enumerate(self.data) if i % self.count == place}
        made = self.ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(RayWorker)
        actor = made.remote(self.settings, own)
        self.coming[actor.versions.remote()] = (place, actor)

    def _await_all(self) -> None:
        """Wait for the first actors."""
        self.ray.wait(list(self.coming), num_returns=len(self.coming), timeout=START)
        self._welcome()
        if self.coming:
            missing = len(self.coming)
            self.close()
            raise RuntimeError(
                f"{missing} of {self.count} Ray actors did not start within {START:.0f} seconds: "
                "the processors of the cluster are taken (see `ray status`), or its nodes are slow"
            )

    def _welcome(self) -> None:
        """Take on the actors that have started, if their versions are those of this process."""
        if not self.coming:
            return
        ready, _ = self.ray.wait(list(self.coming), num_returns=len(self.coming), timeout=0)
        for reference in ready:
            place, actor = self.coming.pop(reference)
            try:
                theirs = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                if not self.actors:
                    self.close()
                    raise RuntimeError(f"a Ray actor cannot start: {_reason(error)}") from error
                warnings.warn(f"a Ray actor cannot start again: {_reason(error)}", stacklevel=2)
                continue
            ours = _versions()
            other = [f"{n} {theirs[n]} instead of {ours[n]}" for n in ours if theirs[n] != ours[n]]
            if other:
                self.close()
                raise RuntimeError(
                    f"Ray's node {theirs['node']} has {', '.join(other)}: install the versions of "
                    "this machine on every node, or numbers would differ"
                )
            self.actors[place] = actor

    def take(self, block: TurnBlock, changes: np.ndarray, here: Here) -> list[tuple[Any, Any]]:
        """The turns of a block; fills `changes`, and returns the rows that each result is of."""
        self._welcome()
        shared = block.turns.params
        params = self.ray.put(shared if shared.ndim == 1 else shared[:1])
        found: list[tuple[Any, Any]] = []
        flying: dict[Any, tuple[int, list[np.ndarray]]] = {}
        rest = np.arange(block.turns.agents.size)
        while rest.size or flying:
            if rest.size and not self.actors:  # nobody is left: this process goes on alone
                own = np.empty((rest.size, changes.shape[1]))
                result = here(*block.rows(rest)[:3], own)
                changes[rest] = own
                found.append((rest, BlockResult(result, {}, {}, {}, "")))
                rest = rest[:0]
            for place, mine in self._shares(block, rest).items():
                blocks = [(part, self.data[part], self._sent(block, rows)) for part, rows in mine]
                reference = self.actors[place].turns.remote(params, blocks)
                flying[reference] = (place, [rows for _, rows in mine])
            rest = rest[:0]
            if flying:
                ready, _ = self.ray.wait(list(flying), num_returns=1)
                place, rows = flying.pop(ready[0])
                try:
                    for some, result in zip(rows, self.ray.get(ready[0]), strict=True):
                        changes[some] = result.uploads.changes
                        found.append((some, result))
                    self.losses = 0
                except self.ray.exceptions.RayTaskError as error:  # of the module, or of the data
                    if isinstance(error.cause, ValueError) and "memory" not in str(error.cause):
                        raise error.cause from error
                    raise RuntimeError(f"a Ray actor's turn failed: {_reason(error)}") from error
                except self.ray.exceptions.RayError as error:
                    rest = np.concatenate([rest, *rows])
                    self._lose(place, error)
        return found

    def _lose(self, place: int, error: Exception) -> None:
        """An actor is gone: say so, and start another one unless that seems to be of no use."""
        self.actors.pop(place, None)
        self.losses += 1
        again = self.losses < MOST_LOSSES
        then = (
            "another one starts" if again else f"it was the {self.losses}rd in a row: none starts"
        )
        warnings.warn(
            f"a Ray actor is lost, {then}, and its turns are taken again: {_reason(error)}",
            stacklevel=2,
        )
        if again:
            self._start(place)

    @staticmethod
    def _sent(block: TurnBlock, rows: np.ndarray) -> TurnBlock:
        """Some turns, without the model where it is one for all: that is in the store."""
        some = block.rows(rows)
        if some.turns.params.ndim == 2:
            return some
        return some._replace(turns=some.turns._replace(params=np.empty(0, np.float32)))

    def _shares(self, block: TurnBlock, rest: np.ndarray) -> dict[int, list[tuple[int, Any]]]:
        """Who takes which rows, part by part: about as many each, at home where possible."""
        if not rest.size:
            return {}
        parts = self.part_of[block.turns.agents[rest]]
        most = -(-rest.size // len(self.actors))
        load = dict.fromkeys(self.actors, 0)
        chosen: dict[int, dict[int, list[int]]] = {place: {} for place in self.actors}
        away = []
        for row, part in zip(rest.tolist(), parts.tolist(), strict=True):
            home = part % self.count
            if load.get(home, most) < most:
                load[home] += 1
                chosen[home].setdefault(part, []).append(row)
            else:
                away.append((row, part))
        for row, part in away:
            place = min(load, key=load.__getitem__)
            load[place] += 1
            chosen[place].setdefault(part, []).append(row)
        return {
            place: [(part, np.array(rows)) for part, rows in mine.items()]
            for place, mine in chosen.items()
            if mine
        }

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        handles = [*self.actors.values(), *(actor for _, actor in self.coming.values())]
        self.actors, self.coming, self.data = {}, {}, []
        if not self.ray.is_initialized():
            return
        for actor in handles:
            self.ray.kill(actor)
        if self.mine:
            self.ray.shutdown()

    def __del__(self) -> None:
        if hasattr(self, "coming"):
            self.close()


def _reason(error: Exception) -> str:
    """What happened to an actor, and what to do if it was memory."""
    text = " ".join(str(error).split())
    if "memory" in text.lower() or "oom" in text.lower():
        return (
            "a node ran out of memory; use fewer threads, or nodes with more of it "
            f"({type(error).__name__})"
        )
    if "ModuleNotFoundError" in text:
        return f"install isfed and what your module needs on every node ({text[-200:]})"
    return f"{type(error).__name__}: {text[:200]}"
