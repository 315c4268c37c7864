"""A module whose trainable parameters are views of one flat tensor: loading a model is one copy."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class FlatModule:
    """A module on its device, with `flat`, the vector that its trainable parameters are views of.

    Frozen parameters (`requires_grad=False`) and buffers are no part of the vector.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self.device = device
        self.names, self.params = _trainable(self.module)
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.params])
        self.dtype = self.flat.dtype
        begin = 0
        for param in self.params:
            param.data = self.flat[begin : begin + param.numel()].view(param.shape)
            begin += param.numel()

    @property
    def size(self) -> int:
        """The number of trainable parameters."""
        return self.flat.numel()

    def load(self, params: np.ndarray | Tensor) -> None:
        """Set the trainable parameters."""
        source = torch.from_numpy(params) if isinstance(params, np.ndarray) else params
        self.flat.copy_(source)

    def vector(self) -> np.ndarray:
        """The trainable parameters in float64."""
        return self.flat.detach().to("cpu", torch.float64, copy=True).numpy()

    def buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers that belong to the model, on the CPU, by name."""
        kept = set(self.module.state_dict())
        named = self.module.named_buffers()
        return {name: b.detach().cpu().clone() for name, b in named if name in kept}

    def load_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Set the buffers."""
        own = dict(self.module.named_buffers())
        for name, value in buffers.items():
            own[name].copy_(value)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all that the model consists of, on the CPU, by name."""
        return {k: v.detach().cpu().clone() for k, v in self.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all that the model consists of, or raise a ValueError that names what differs."""
        own = self.module.state_dict()
        wrong = [f"{name} is missing" for name in own if name not in state]
        wrong += [f"{name} is not in this module" for name in state if name not in own]
        for name in own.keys() & state.keys():
            given, expected = tuple(np.shape(state[name])), tuple(own[name].shape)
            if given != expected:
                wrong.append(f"{name} has shape {given}, expected {expected}")
        if wrong:
            shown = "; ".join(sorted(wrong)[:5]) + ("; ..." if len(wrong) > 5 else "")
            raise ValueError(
                f"these weights are of another architecture than {type(self.module).__name__}: "
                f"{shown}"
            )
        self.module.load_state_dict({k: torch.as_tensor(v) for k, v in state.items()})


def _trainable(module: nn.Module) -> tuple[list[str], list[nn.Parameter]]:
    """The names and the trainable parameters, each once, in the module's order."""
    found = {}
    for name, param in module.named_parameters():
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"parameter {name} has no shape yet: call the module once on an example inside "
                "make_module, so that its lazy layers get theirs"
            )
        if param.requires_grad:
            found[name] = param
    kind = type(module).__name__
    if not found:
        raise ValueError(f"{kind} has no trainable parameters")
    types = {param.dtype for param in found.values()}
    if len(types) > 1 or not next(iter(types)).is_floating_point:
        listed = ", ".join(sorted(str(t) for t in types))
        raise ValueError(f"the parameters of {kind} must all be of one float type, got {listed}")
    return list(found), list(found.values())
