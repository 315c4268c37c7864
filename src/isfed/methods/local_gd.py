"""Local gradient descent: Khaled, Mishchenko and Richtarik, "First Analysis of Local GD on
Heterogeneous Data" (2019), arXiv 1909.04715.

Every agent takes H steps x_k <- x_k - gamma grad P_k(x_k) with all its data; then the models are
averaged. With H = 1 this is gradient descent on P. With H > 1 and different P_k its fixed point
is not w^o.
"""

from __future__ import annotations

from dataclasses import dataclass

from isfed.methods.local_sgd import LocalSGD


@dataclass(frozen=True, kw_only=True)
class LocalGD(LocalSGD):
    """Local gradient descent: all agents take `steps` (H) full-batch steps, then average.

    >>> LocalGD(step_size=0.01, steps=5).full_batch
    True
    """

    full_batch: bool = True
