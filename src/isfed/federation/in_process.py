"""One repetition in process: a cloud and its agents, for any loss and any design."""

from __future__ import annotations

import numpy as np

from isfed.base.streams import NO_AGENT, Purpose, Stream, stream_key
from isfed.federation.agent import Agent, SampledMethod, Upload
from isfed.federation.cloud import Cloud, Selection
from isfed.problems import Problem
from isfed.sampling.designs import WithReplacement
from isfed.sampling.policies import Initial, Refresh
from isfed.sampling.telemetry import COLUMNS, RoundWatch, uniform_rows


class Federation:
    """One repetition: a cloud and its agents, stepped in process."""

    def __init__(
        self, problem: Problem, algorithm: SampledMethod, *, seed: int, repetition: int, initial
    ) -> None:
        self.problem = problem
        self.algorithm = algorithm
        rules = algorithm.rules(problem.num_agents)
        self.agents = [
            Agent(
                k,
                problem.data.agent(k),
                problem.loss,
                (int(problem.local_steps[k]), int(problem.batch_size[k])),
                rules,
            )
            for k in range(problem.num_agents)
        ]
        self.cloud = Cloud(
            initial,
            problem.num_agents,
            algorithm.num_active,
            algorithm.agents,
            algorithm.agent_design,
        )
        self.cloud.key = stream_key(seed, repetition=repetition, purpose=Purpose.AGENTS)
        examples_key = stream_key(seed, repetition=repetition, purpose=Purpose.EXAMPLES)
        for agent in self.agents:
            agent.key = examples_key
        self.drift_key = stream_key(seed, repetition=repetition, purpose=Purpose.DRIFT)
        self.shift = np.zeros(problem.num_params) if algorithm.drift > 0.0 else None
        self.gradients = 0
        self.uploads = 0
        self.watched = np.zeros(len(COLUMNS), np.float32)  # telemetry of the last round
        self._start_at_optimum()

    def _start_at_optimum(self) -> None:
        """Write the oracle's scores."""
        if self.algorithm.examples.initial == Initial.OPTIMUM:
            for agent in self.agents:
                agent.table.replace(agent.norms_at(self.problem.optimum)[0])  # eq. (44)
        if self.algorithm.agents.initial == Initial.OPTIMUM:
            self._score_all(self.problem.optimum)  # eq. (48)

    def _score_all(self, params: np.ndarray) -> None:
        scores = [agent.score_at(params, shift=self.shift) for agent in self.agents]
        self.cloud.table.replace(np.array(scores))

    def step(self, round_index: int) -> None:
        """One round of Algorithm 1."""
        cloud = self.cloud
        if self.shift is not None:
            stream = Stream.at(self.drift_key, round_index=round_index, agent=NO_AGENT)
            self.shift += self.algorithm.drift * stream.normals(self.shift.size)
        if self.algorithm.agents.refresh == Refresh.ALL:
            self._score_all(cloud.params)  # eq. (50)
            self.gradients += len(self.problem.data.targets)
        selection = cloud.select(round_index)
        uploads = [
            self.agents[k].work(cloud.params, prob, round_index, shift=self.shift)
            for k, prob in zip(selection.active, selection.agent_prob, strict=True)
        ]
        self.watched = self._watch(selection, uploads)
        cloud.aggregate(selection, uploads)
        cloud.refresh(selection, np.array([upload.score for upload in uploads]))
        self.gradients += sum(upload.gradients for upload in uploads)
        self.uploads += len(uploads)

    def _watch(self, selection: Selection, uploads: list[Upload]) -> np.ndarray:
        """The telemetry of the round."""
        algorithm, problem = self.algorithm, self.problem
        if algorithm.agents.equal and algorithm.examples.equal:
            return uniform_rows((), algorithm.num_active)
        watch = RoundWatch(
            problem.num_agents,
            algorithm.num_active,
            algorithm.agents.floor,
            capped=not isinstance(algorithm.agent_design, WithReplacement),
        )
        for k, prob, times, upload in zip(*selection, uploads, strict=True):
            local_steps = int(problem.local_steps[k])
            steps = 1 if algorithm.divide_by_steps else local_steps
            step = algorithm.step_size * steps / (problem.num_agents * prob)
            change = 0.0
            for moved in upload.change:  # one after the other, as the kernel adds them
                change += moved * moved
            drawn = local_steps * int(problem.batch_size[k])
            watch.agent(self.agents[k].watch.turn, drawn, change / (step * step), prob, times)
        return watch.end()

    def finish(self) -> None:
        """Bring `current` tables to the final model; between turns they hold that of the last."""
        if self.algorithm.examples.refresh == Refresh.ALL:
            for agent in self.agents:
                norms, _ = agent.norms_at(self.cloud.params, shift=self.shift)
                agent.table.replace(norms)
