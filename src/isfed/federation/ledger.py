"""What a run costs: messages, bytes, evaluations, virtual seconds; kept by the agents."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

BYTES = 4  # of one number in a message: models and scalars travel in single precision
FORWARD = 1.0 / 3.0  # of the work of a gradient is a forward pass


@dataclass
class Ledger:
    """What a run has cost so far.

    Args:
        models_down, models_up: messages of M numbers; gradients and momenta count as models.
        scalars_down, scalars_up: single numbers, for instance scores, risks and sizes.
        gradients, forwards: evaluations, counted in examples.
        seconds: seconds on the virtual clock.
        data_up: bytes of raw examples that agents sent, as they are stored.
        rounds: versions of the cloud's model.
    """

    models_down: int = 0
    models_up: int = 0
    scalars_down: int = 0
    scalars_up: int = 0
    gradients: int = 0
    forwards: int = 0
    seconds: float = 0.0
    data_up: int = 0
    rounds: int = 0

    def charge(self, **entries: float) -> None:
        """Add to some of the entries."""
        for name, number in entries.items():
            setattr(self, name, getattr(self, name) + number)

    def bytes_up(self, num_params: int) -> int:
        """Four bytes for every number sent up, and raw examples as they are."""
        return BYTES * (self.models_up * num_params + self.scalars_up) + self.data_up

    def bytes_down(self, num_params: int) -> int:
        """Four bytes for every number sent down."""
        return BYTES * (self.models_down * num_params + self.scalars_down)

    @property
    def work(self) -> float:
        """Evaluations in units of an example's gradient."""
        return self.gradients + FORWARD * self.forwards

    def as_array(self) -> np.ndarray:
        """All entries, in the order of the fields."""
        return np.array([getattr(self, name) for name in ENTRIES], np.float64)

    @classmethod
    def from_array(cls, values: np.ndarray) -> Ledger:
        """What `as_array` wrote."""
        ledger = cls()
        for field, value in zip(fields(cls), values.tolist(), strict=True):
            setattr(ledger, field.name, type(field.default)(value))
        return ledger


ENTRIES = tuple(field.name for field in fields(Ledger))


def first_entries(num_agents: int) -> dict[str, int]:
    """What every run begins with: each agent tells its N_k, E_k and B_k."""
    return {"scalars_up": 3 * num_agents}
