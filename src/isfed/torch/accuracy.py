"""Which examples a module has right."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_BINARY = {nn.BCEWithLogitsLoss: 0.0, nn.BCELoss: 0.5}  # from which output on the class is 1


def hits_of(loss: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """(B,) 1 for an example whose class is found, 0 for another one.

    Of a sequence, the share of its entries that are right. nan where targets are not classes, or
    where the loss ignores them.
    """
    nothing = torch.full((len(outputs),), torch.nan, device=outputs.device)
    if type(loss) in _BINARY:
        classes = bool(((targets == 0) | (targets == 1)).all())
        right = (outputs > _BINARY[type(loss)]) == (targets > 0.5)
        return right.reshape(len(right), -1).float().mean(1) if classes else nothing
    if targets.is_floating_point() or outputs.dim() < 2 or outputs.shape[1] < 2:
        return nothing
    if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        return nothing
    right = (outputs.argmax(1) == targets).float()
    right[targets == getattr(loss, "ignore_index", -100)] = torch.nan
    return right.reshape(len(right), -1).nanmean(1)
