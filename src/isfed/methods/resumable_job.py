"""A federation that outlives its cloud's process: a method, guarded agents, and a checkpoint."""

from __future__ import annotations

import hashlib
import re
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from isfed.base import atomic_files
from isfed.base.portable_arithmetic import distance_between, norm, weighted_sum
from isfed.federation.guarded import Guarded, RoundReport
from isfed.federation.messages import Cohort, Updates
from isfed.federation.response_rates import Responses
from isfed.federation.safety import LIMITS, Safety, tightened
from isfed.methods.federated import Info, Opened
from isfed.methods.method_protocol import filled_state, flat_state
from isfed.methods.private import scores_released, spent_by, stated_epsilons
from isfed.sampling import score_table

FORMAT = 2
METHOD, RECORDS = "method.", "records."  # before the names of their arrays in a checkpoint


class Job:
    """A method over agents that may be absent, wrong or hostile; `round_index` is the next round.

    Args:
        method: a `Federated`, or a method with a round of its own.
        agents: the agents behind their border.
        params: (M,) the first model.
        about: what a checkpoint must agree with: all that decides the draws and the steps.
    """

    def __init__(
        self, method: Any, agents: Guarded, params: np.ndarray, *, about: tuple[Any, ...] = ()
    ) -> None:
        self.method, self.agents, self.about = method, agents, about
        self.round_index, self._limited = 0, 0
        self._again = 0  # scores that agents released in rounds that were gone back on
        self.name = uuid.uuid4().hex  # agents begin anew when it changes
        self.state: Any = method.start(agents, params)
        if self.is_composed:
            agents.first_step = float(method.step_size)

    @property
    def params(self) -> np.ndarray:
        """(M,) the model."""
        return self.method.model(self.state)

    @property
    def is_composed(self) -> bool:
        """Whether a round can be opened and closed; not so for a method with its own round."""
        return hasattr(self.method, "open")

    def open(self) -> Opened:
        """The next round: who works, and what is asked of each; asked twice, the same."""
        opened = self.method.open(self.state, self.agents, self.round_index)
        self._limited += opened.cohort.lowered
        return opened

    def close(self, opened: Opened, updates: Updates) -> RoundReport:
        """End the round with what came back of those who were asked."""
        cohort, facts = opened.cohort, self.method.facts(self.agents)
        before, adjustment = self.params, self._adjustment(cohort)
        good = self.agents.judge(cohort, opened.work, updates)
        self.state, info = self.method.close(self.state, facts, opened, good, self.round_index)
        step = distance_between(self.params, before, facts.num_trained)
        left_out = self._left_out(info, adjustment, facts)
        late = 0 if good.capped is None else int(good.capped.sum())
        limits = info.evidence.clipped, max(late, info.evidence.capped)
        return self._report(cohort.agents, good, step, left_out, limits)

    def step(self) -> RoundReport:
        """One whole round over agents that can be asked and waited for."""
        if not self.is_composed:
            before = self.params.copy()
            self.state = self.method.round(self.state, self.agents, self.round_index)
            step = distance_between(self.params, before, self.agents.num_trained)
            return self._report(np.empty(0, np.int64), None, step)
        opened = self.open()
        cohort, work = self.agents.narrow(opened.cohort, opened.work)
        updates = self.agents.agents.train(cohort, opened.sent, work, self.round_index)
        return self.close(opened, updates)

    def _adjustment(self, cohort: Cohort) -> np.ndarray | None:
        """(n,) what an adjustment for absences would multiply by; None if there was no absence."""
        responses, most = self.agents.responses, self.agents.safety.largest_adjustment
        if (responses.turns == responses.answers).all():
            return None
        return responses.adjustments(cohort.agents, most=most)

    def _left_out(self, info: Info, adjustment: np.ndarray | None, facts: Any) -> float:
        """The length of what an adjustment would have added; 0 where weights are not known."""
        weights = getattr(self.method.estimator, "weights", None)
        cohort, updates = info.cohort, info.updates
        if weights is None or adjustment is None:
            return 0.0
        each = weights(cohort, facts)[updates.place]
        each = each * updates.factor * (adjustment[updates.place] - 1.0)
        return norm(weighted_sum(each, updates.change[:, : facts.num_trained])) / cohort.num

    def _report(
        self, drawn: np.ndarray, good: Updates | None, step: float, left_out: float = 0.0,
        limits: tuple[int, int] = (0, 0),
    ) -> RoundReport:  # fmt: skip
        """What happened, and on to the next round."""
        seconds: list[float] = [] if good is None else [-1.0] * drawn.size
        if good is not None and good.timing is not None:
            seconds = [-1.0 if s != s else s for s in good.timing.seconds.tolist()]
        report = RoundReport(
            round_index=self.round_index,
            **self.agents.take_tally(),
            limited_scores=self._limited,
            clipped=limits[0],
            capped_weights=limits[1],
            excluded=int(self.agents.records.excluded.sum()),
            step=step,
            left_out=left_out,
            agents=drawn.tolist(),
            seconds=seconds,
            epsilons=self._epsilons(),
        )
        self.round_index += 1
        self._limited = 0
        return report

    def _epsilons(self) -> list[float]:
        """What every agent has lost with the round that ends; empty where no epsilon is stated."""
        if not self.is_composed:
            return []
        rounds = self.round_index + 1
        return stated_epsilons(self.method, self.state, rounds, again=self._again).tolist()

    def spent(self) -> dict[str, np.ndarray]:
        """What the privacy of all rounds has cost; empty where nothing is counted."""
        spent = spent_by(self.method, self.state)
        if spent is None:
            return {}
        scores = np.array(scores_released(self.method, self.round_index) + self._again)
        return {"job": np.array(self.name), "spent": spent, "scores": scores}

    def _count_spent(self, arrays: dict[str, np.ndarray]) -> None:
        """Count what `spent` gave before this job went back to an older checkpoint."""
        fresh = self.spent()
        if not fresh or str(arrays.get("job")) != self.name:
            return
        atomic_files.check_form(arrays, fresh, what="the record of privacy")
        np.maximum(fresh["spent"], arrays["spent"], out=fresh["spent"])
        self._again = max(0, int(arrays["scores"]) - int(fresh["scores"]))

    def fingerprint(self) -> str:
        """Of what a checkpoint must agree with; a function's address is no choice."""
        about = (x.without_limits() if isinstance(x, Safety) else x for x in self.about)
        text = re.sub(r" at 0x[0-9a-f]+", "", repr(tuple(about)))
        return hashlib.sha256(text.encode()).hexdigest()

    def _limits(self) -> np.ndarray:
        """(n,) the limits of `Safety` as they are in force; infinite where there is none."""
        limits = {name: getattr(self.agents.safety, name) for name in LIMITS}
        sampler = getattr(self.method, "sampler", None)
        limits["most_inclusion"] = getattr(sampler, "most_inclusion", np.inf)
        for name in ("most_refusals", "silent_rounds"):
            limits[name] = limits[name] or np.inf  # 0: never
        return np.array(list(limits.values()), np.float64)

    def _check_scores(self) -> None:
        """Raise a ValueError for scores that no agent can have, and sum them up anew."""
        nodes = getattr(getattr(self.state, "sampler", None), "nodes", None)
        if nodes is None:
            return
        scores = nodes[: self.agents.num_agents]
        wrong = np.flatnonzero((scores < 0.0) & (scores != score_table.UNSEEN))
        if wrong.size:
            raise ValueError(
                f"the checkpoint holds the score {scores[wrong[0]]:g} of agent {wrong[0]}, "
                "expected at least 0, or -1 for none yet: it is damaged; use a copy, or begin anew"
            )
        score_table.rebuild(nodes, 0, self.agents.num_agents)

    def checkpoint(self) -> dict[str, np.ndarray]:
        """What the next round needs; the draws need no more than the seed and the round."""
        about = {
            "format": FORMAT,
            "fingerprint": self.fingerprint(),
            "job": self.name,
            "round_index": self.round_index,
            "limits": self._limits(),
        }
        method = {METHOD + name: value for name, value in flat_state(self.state).items()}
        records = {RECORDS + name: value for name, value in self.agents.state().items()}
        return {name: np.array(value) for name, value in about.items()} | method | records

    def save(self, path: Path) -> None:
        """Write the checkpoint, and beside it what privacy has cost.

        That is no part of the checkpoint, or rounds that are gone back on would not count.
        """
        if spent := self.spent():
            atomic_files.save_arrays(path.with_name(f"{path.name}.privacy"), spent)
        atomic_files.save_arrays(path, self.checkpoint())

    def load(self, path: Path) -> list[str]:
        """Go on from what `save` wrote; returns which limits are tighter than they were."""
        tighter = self.restore(atomic_files.load_arrays(path), getattr(self.agents, "order", None))
        record = path.with_name(f"{path.name}.privacy")
        if record.exists():
            self._count_spent(atomic_files.load_arrays(record))
        return tighter

    def restore(self, arrays: dict[str, np.ndarray], order: np.ndarray | None = None) -> list[str]:
        """Go on from a checkpoint of the same job; returns which limits are tighter than they were.

        `order` has the places of our entries of the model in one of format 1.
        """
        if str(arrays.get("fingerprint")) != self.fingerprint():
            raise ValueError(
                "the checkpoint belongs to another algorithm, seed, number of agents, model or "
                "Safety; give the same ones to continue it, or another path to begin anew"
            )
        fresh = self.checkpoint()
        if "format" not in arrays:
            arrays = from_format_1(arrays, fresh, order)
        since = ("limits", f"{RECORDS}spread", f"{METHOD}estimator.owed")  # this version
        arrays = {name: fresh[name] for name in since if name in fresh} | arrays
        atomic_files.check_form(arrays, fresh, what="the checkpoint")
        if (round_index := int(arrays["round_index"])) < 0:
            raise ValueError(
                f"the checkpoint holds round {round_index}; expected one of at least 0"
            )
        tighter = tightened(arrays["limits"], fresh["limits"])
        self.name, self.round_index = str(arrays["job"]), round_index
        kept = {name: arrays[METHOD + name].copy() for name in flat_state(self.state)}
        self.state = filled_state(self.state, kept)
        self._check_scores()
        self.agents.restore({name: arrays[RECORDS + name] for name in self.agents.state()})
        return tighter


def from_format_1(
    arrays: dict[str, np.ndarray], fresh: dict[str, np.ndarray], order: np.ndarray | None
) -> dict[str, np.ndarray]:
    """A checkpoint of the version before this one, under the names of now; for this version only.

    Args:
        arrays: the old checkpoint.
        fresh: a new one of the same job, before its first round.
        order: the places of our entries of the model in the old one, trained ones first.
    """
    renamed = {"format": fresh["format"]}
    for name, value in fresh.items():
        last = name.rpartition(".")[2]
        if name in ("format", f"{METHOD}estimator.responses"):
            continue
        if last in arrays:
            given = arrays[last]
            if last in ("params", "centre") and order is not None and given.shape == order.shape:
                given = given[order][: value.size]
            renamed[name] = given
        elif not value.size:  # what only a spread keeps
            renamed[name] = value
    turns = ("turns", "answers", "answered_at")
    if f"{METHOD}estimator.responses" in fresh and all(name in arrays for name in turns):
        responses = Responses(0)
        responses.restore({name: arrays[name] for name in turns})
        renamed[f"{METHOD}estimator.responses"] = responses.kept()
    return renamed
