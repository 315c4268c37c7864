"""The lengths of what agents send back, from which samplers learn, and inclusion made of them."""

from __future__ import annotations

import numpy as np

from isfed.base.portable_arithmetic import row_norms
from isfed.federation.messages import Facts
from isfed.methods.federated import Evidence
from isfed.sampling.designs.inclusion import inclusion_probabilities

LARGEST = 1e100  # lengths of a model that diverges are cut here: their squares are still finite
ON_CHANGE = {"weights on the change": "the lengths of the changes count; use HorvitzThompson()"}


def lengths_of(rows: np.ndarray) -> np.ndarray:
    """(n,) the lengths of some vectors, finite also while a model diverges."""
    norms = row_norms(np.ascontiguousarray(rows))
    return np.minimum(np.where(np.isnan(norms), LARGEST, norms), LARGEST)


def weighed_changes(evidence: Evidence, facts: Facts, who: np.ndarray) -> np.ndarray:
    """(m,) c_k |change_k| of those that answered."""
    return facts.share(who) * lengths_of(evidence.change)


def weighed_gradients(evidence: Evidence, facts: Facts, sampler: object) -> np.ndarray:
    """(m,) c_k |g_k|, with g_k the mean gradient over the steps of a turn."""
    if evidence.reach is None:
        raise ValueError(
            f"{type(sampler).__name__} learns from gradients, and how far a turn reaches is not "
            "known here; use HorvitzThompson(), over a network with local_steps=..."
        )
    return lengths_of(evidence.change / evidence.reach[:, None]) / facts.num_agents


def capped_inclusion(scores: np.ndarray, num: int) -> np.ndarray:
    """(n,) inclusion by scores that sums to `num`; a score of 0 shares the places that are left.

    >>> capped_inclusion(np.array([3.0, 0.0, 1.0, 0.0]), 3).tolist()
    [1.0, 0.5, 1.0, 0.5]
    """
    num, positive = min(num, scores.size), scores > 0.0
    certain = int(positive.sum())
    if certain == 0 or certain > num:
        return inclusion_probabilities(scores, num) if scores.size else scores
    rest = (num - certain) / max(scores.size - certain, 1)
    return np.where(positive, 1.0, rest)
