"""What an agent keeps on its own disk: its scores per job, its secret, and how much it has told.

Flower runs every message in a new process, so what the agent remembers lives in files. The file of
a job holds the state before and after its last turn: when a cloud that was killed asks for that
turn again, the agent starts from where it stood and sends the same answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from isfed.base import atomic_files
from isfed.federation.agent import Agent
from isfed.federation.remote_variates import OwnMemory
from isfed.flower import wire_format

MOST_JOBS = 16  # files of jobs that are kept per agent; the oldest go first
DAYS_KEPT = 31  # of counted reports
LOCK_SECONDS = 30.0
SECRET_BYTES = 32


def private_folder(path: Path) -> Path:
    """The folder, which only its owner can enter; one that holds other things is left alone."""
    try:
        path.mkdir(mode=0o700, parents=True)
        return path
    except FileExistsError:
        pass
    if not hasattr(os, "getuid"):  # Windows: rights come from the parent folder, not from a mode
        return path
    owners = {path.stat().st_uid}
    if path.is_symlink():  # as systemd makes for a user of its own choice; that is root's
        owners.add(path.lstat().st_uid or os.getuid())
    if owners != {os.getuid()}:
        raise ValueError(
            f"{path} belongs to another user, who could read what this agent keeps; give "
            "isfed-state a folder of its own, or: chown"
        )
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        others = [p.name for p in path.iterdir() if not _is_ours(p.name)]
        if others:
            raise ValueError(
                f"{path} can be entered by others (mode {mode:o}) and holds more than an agent's "
                "files; give isfed-state a folder of its own, or: chmod 700"
            )
        path.chmod(0o700)
    return path


def _is_ours(name: str) -> bool:
    return name.startswith(("agent-", ".agent-", "secret", ".secret", "reports", ".reports"))


_MOMENTS = [f"{what}_{moment}" for what in ("nodes", "memory") for moment in ("before", "after")]


class Memory:
    """The file of one agent in one job: what it knew before and after the last turn it took.

    `node` is the agent's own number, or None: files of one node are counted together, whatever the
    cloud calls the job and the agent.
    """

    def __init__(self, folder: Path, agent: Agent, order: wire_format.Order, node: Any) -> None:
        called = repr((order.job, order.agent)).encode()  # the cloud's words
        self.kin = f"agent-{node if isinstance(node, int) else 'own'}-*.npz"
        job = hashlib.blake2b(called, digest_size=8).hexdigest()
        self.path = folder / self.kin.replace("*", job)
        self.agent, self.order = agent, order
        self.own = (
            None if order.terms is None else OwnMemory(order.terms.rule, order.terms.centre.size)
        )
        self.before: dict[str, np.ndarray] = {}
        self.last_told: float | None = None

    def _stored(self) -> dict[str, np.ndarray] | None:
        return atomic_files.load_arrays(self.path) if self.path.exists() else None

    def recall(self) -> float | None:
        """Put the agent where it stood, for a turn asked for again before that turn.

        Returns the score that was told in that case: noise anew would average out.
        """
        stored = self._stored()
        told = None
        if stored is not None:
            if lacking := {"round_index", "told", *_MOMENTS} - set(stored):
                raise ValueError(f"{self.path} lacks {min(lacking)}; remove it to start again")
            again = int(stored["round_index"]) == self.order.round_index
            moment = "before" if again else "after"
            nodes, memory = stored[f"nodes_{moment}"], stored[f"memory_{moment}"]
            if nodes.shape != self.agent.table.nodes.shape:
                raise ValueError(
                    f"{self.path} remembers another number of examples than the "
                    f"{self.agent.table.count} loaded; the data must not change during a job: "
                    "remove the file to start again"
                )
            self.agent.table.nodes, self.agent.memory = nodes, memory
            self._recall_own(stored, moment)
            self.last_told = float(stored["told"])
            told = self.last_told if again else None
        self.before = {
            "nodes_before": self.agent.table.nodes.copy(),
            "memory_before": self.agent.memory.copy(),
            **self._own_state("before"),
        }
        return told

    def _recall_own(self, stored: dict[str, np.ndarray], moment: str) -> None:
        """What it remembers of its gradients, for a correction."""
        if self.own is None:
            return
        start = f"own_{moment}_"
        found = {name[len(start) :]: v for name, v in stored.items() if name.startswith(start)}
        if not found:
            raise ValueError(
                f"{self.path} holds no memory of gradients: the cloud has turned on a correction "
                "during a job; begin a new one"
            )
        self.own.restore(found)

    def _own_state(self, moment: str) -> dict[str, np.ndarray]:
        if self.own is None:
            return {}
        return {f"own_{moment}_{name}": v.copy() for name, v in self.own.state().items()}

    def keep(self, told: float) -> None:
        """Write what the agent knows now, unless a later turn has been written meanwhile."""
        stored = self._stored()
        if stored is not None and int(stored["round_index"]) > self.order.round_index:
            return  # this process was overtaken: it answers a round that is over
        state = {
            "round_index": np.array(self.order.round_index),
            "told": np.array(told),
            "nodes_after": self.agent.table.nodes,
            "memory_after": self.agent.memory,
            **self._own_state("after"),
            **self.before,
        }
        wrong = [name for name, value in state.items() if not np.isfinite(value).all()]
        if wrong:
            raise ValueError(
                f"{wrong[0]} of this turn is not finite, and every later turn would start from it; "
                f"{self.path} stays as it was"
            )
        atomic_files.save_arrays(self.path, state)
        if stored is None:
            self._forget_old_jobs()

    def _forget_old_jobs(self) -> None:
        """A cloud that begins job after job must not fill the disk."""
        jobs = self.path.parent.glob(self.kin)
        for old in sorted(jobs, key=lambda p: p.stat().st_mtime)[:-MOST_JOBS]:
            old.unlink(missing_ok=True)


class Discretion:
    """What decides how much an agent reveals: a secret that nobody else has, and a daily budget.

    Noise is drawn from the secret, so that the same question has the same answer and a cloud
    cannot average it away by asking again.
    """

    def __init__(self, folder: Path, *, reports_per_day: int | None) -> None:
        self.folder, self.reports_per_day = folder, reports_per_day
        self.secret = self._load_secret()

    def _load_secret(self) -> bytes:
        path = self.folder / "secret"
        if not path.exists():
            draft = self.folder / f".secret.{secrets.token_hex(8)}"
            atomic_files.write_whole(
                draft, secrets.token_bytes(SECRET_BYTES), mode=atomic_files.OWNER_ONLY
            )
            try:
                os.link(draft, path)  # whole from the first moment, and only if nobody was faster
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        secret = path.read_bytes()
        if len(secret) != SECRET_BYTES:  # an empty one would make noise that anybody can compute
            raise ValueError(
                f"{path} is damaged: it has {len(secret)} bytes instead of {SECRET_BYTES}; remove "
                "it, and the next start makes another"
            )
        return secret

    def rng(self, *about: object) -> np.random.Generator:
        """The generator of the noise for one question; the same question gives the same noise."""
        seed = hashlib.blake2b(repr(about).encode(), key=self.secret, digest_size=32).digest()
        return np.random.default_rng(int.from_bytes(seed, "little"))

    def may_report(self) -> bool:
        """Count one more report of today, if the budget has one left."""
        if self.reports_per_day is None:
            return True
        path = self.folder / "reports.json"
        with _held(self.folder / "reports.lock"):
            today = datetime.now(UTC).date().isoformat()
            counts = _counts(path)
            if counts.get(today, 0) >= self.reports_per_day:
                return False
            # Other days are kept: a clock that goes back must not give a day's budget again.
            recent = {day: counts[day] for day in sorted(counts)[-DAYS_KEPT:]}
            content = json.dumps({**recent, today: counts.get(today, 0) + 1}).encode()
            atomic_files.write_whole(path, content, mode=atomic_files.OWNER_ONLY)
        return True


def _counts(path: Path) -> dict[str, int]:
    """The reports of each day so far; a damaged file is an error, or it would renew the budget."""
    found = atomic_files.read_json(path) if path.exists() else {}
    if not all(type(count) is int and count >= 0 for count in found.values()):
        raise ValueError(f"{path} is damaged (a count that is no number)")
    return found


def _held(path: Path):
    """The lock, when the process that has it lets go."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return atomic_files.hold(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
