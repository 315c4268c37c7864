"""A job whose agents are functions or objects here, stepped by hand, with answers to spoil."""

from dataclasses import replace
from typing import Any

import numpy as np

from isfed.base.random_streams import NO_AGENT, Purpose, Stream, stream_key
from isfed.federation.agent import Upload
from isfed.federation.guarded import Guarded
from isfed.federation.messages import Facts, Updates
from isfed.federation.object_agents import ObjectAgents
from isfed.federation.safety import Safety
from isfed.federation.variate_updates import noise_share
from isfed.methods.over_network import check_weights, over_network, weighting_of
from isfed.methods.resumable_job import Job


class HandAgents:
    """Agents that answer by a function of (place, agent, sent, work, round); None for silence."""

    def __init__(self, num_agents, size, answer, *, seed=0, buffers=0, weights=None):
        self.num_agents, self.num_params, self.num_trained = num_agents, size, size - buffers
        self.answer, self.weights, self.timing = answer, weights, None
        self.keys = {p: stream_key(seed, repetition=0, purpose=p) for p in Purpose}

    def facts(self, client_weights="uniform"):
        sizes = self.num_agents, self.num_params, self.num_trained
        weight = None if client_weights == "uniform" else self.weights
        return Facts(*sizes, weight, self.weights, None, None)

    def stream(self, purpose, round_index, agent=NO_AGENT):
        return Stream.at(self.keys[purpose], round_index=round_index, agent=agent)

    def train(self, cohort, sent, work, round_index):
        """As agents apart: what cannot be read is a change of no numbers."""
        uploads = [
            self.answer(place, int(agent), sent, work, round_index)
            for place, agent in enumerate(cohort.agents)
        ]
        place = np.array([p for p, upload in enumerate(uploads) if upload is not None], np.int64)
        given = [upload for upload in uploads if upload is not None]
        good = [u.change.shape == sent.shape for u in given]
        change = [u.change if fits else np.full(sent.size, np.nan)
                  for u, fits in zip(given, good, strict=True)]  # fmt: skip
        return Updates(
            place, np.array(change).reshape(-1, sent.size), np.array([u.score for u in given]),
            np.zeros((len(given), 4)), np.zeros((len(given), 0)),
            noise_share=np.array([u.noise_share for u in given], np.float64), timing=self.timing,
        )  # fmt: skip


class Stepped:
    """A job over agents apart, without a network."""

    def __init__(
        self, algorithm, start, num_agents, answer, *, seed=0, safety=None, weighting=None,
        agent_weights=None, buffers=0,
    ):  # fmt: skip
        safety = safety or Safety()
        weights = check_weights(agent_weights, num_agents)
        self.method = over_network(
            algorithm, num_agents=num_agents, safety=safety, weighting=weighting,
            agent_weights=weights,
        )  # fmt: skip
        hands = HandAgents(
            num_agents, start.size, answer, seed=seed, buffers=buffers, weights=weights
        )
        self.border = Guarded(hands, safety)
        about = (algorithm, num_agents, seed, safety, weighting_of(algorithm, weighting))
        self.job = Job(self.method, self.border, start, about=(*about, start.shape))

    @property
    def params(self):
        return self.job.params

    @property
    def table(self):
        return self.method.sampler.table(self.job.state.sampler, self.border.num_agents)

    def drawn(self):
        """Who is drawn in the next round."""
        return self.job.open().cohort.agents

    def step(self, timing=None):
        self.border.agents.timing = timing
        return self.job.step()


class SteppedObjects(Stepped):
    """The same over the objects of a problem; `step` may spoil what they answer."""

    def __init__(self, problem, algorithm, *, seed=5, **options):
        options.setdefault("weighting", "step")  # as in process
        start, count = np.zeros(problem.num_params), problem.num_agents
        super().__init__(algorithm, start, count, self.answer, seed=seed, **options)
        rules = self.method.rules(count)
        self.objects = ObjectAgents(problem, rules, seed=seed, repetition=0)
        self.agents = self.objects.agents
        self.spoil: Any = None

    def answer(self, place, agent, sent, work, round_index):
        upload = self.turn(place, agent, sent, work, round_index)
        return upload if self.spoil is None else self.spoil(place, upload)

    def turn(self, place, agent, sent, work, round_index) -> Upload:
        own, worker = work.rows(slice(place, place + 1)), self.agents[agent]
        step = own.step(np.array([agent]), self.objects.facts())[0]
        steer = None if own.local.correction is None else own.local.correction[0]
        upload = worker.take_turn(sent, step, round_index, correction=steer)
        sizes = len(worker.targets), worker.batch_size, worker.local_steps
        return replace(upload, noise_share=noise_share(*sizes, worker.rules.example_design))

    def step(self, spoil=None, timing=None):
        self.spoil = spoil
        return super().step(timing)
