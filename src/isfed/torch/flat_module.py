"""A module whose model is one flat tensor: loading is one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class FlatModule:
    """A module on its device, with `flat`, the vector that its model consists of.

    First come the trainable parameters, then the float buffers that a state_dict holds, such as
    the running means of batch norm: they cross like parameters, and become a mean of what the
    agents sent. Both are views of `flat`, except for buffers of another float type, which are
    copied. Frozen parameters, integer buffers and buffers that a state_dict leaves out are not in
    it: whenever a model is loaded they get the values they were made with, so that no turn sees
    what another one left.

    Args:
        module: is moved and keeps its parameters in `flat` from now on.
        device: where to.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self.device = device
        self.params = _trainable(self.module)
        self.dtype = self.params[0].dtype
        self.numpy_type = np.dtype(str(self.dtype).removeprefix("torch."))
        self.trained = sum(param.numel() for param in self.params)  # entries of `flat` that learn
        self._owners = _float_buffers(self.module)
        buffers = [owner.get_buffer(name) for owner, name in self._owners]
        parts: list[Tensor] = [*self.params, *buffers]
        self.flat = torch.cat([part.detach().reshape(-1).to(self.dtype) for part in parts])
        self.size = self.flat.numel()
        views = _views(self.flat, parts)
        for param, view in zip(self.params, views, strict=False):
            param.data = view
        self._views = views[len(self.params) :]
        pairs = zip(buffers, self._views, strict=True)
        self._held = [view if b.dtype == self.dtype else b for b, view in pairs]
        self._copied = [(b, v) for b, v in zip(self._held, self._views, strict=True) if b is not v]
        self._place_buffers()
        inside = {id(part) for part in (*self.params, *self._held)}
        tables = [t for m in self.module.modules() for t in (m._parameters, m._buffers)]
        self._outside = [
            _Kept(table, name)
            for table in tables
            for name, tensor in table.items()
            if id(tensor) not in inside
        ]

    def _place_buffers(self) -> None:
        for (owner, name), held in zip(self._owners, self._held, strict=True):
            owner._buffers[name] = held
        for buffer, view in self._copied:
            buffer.copy_(view)

    def views_of(self, vector: Tensor) -> list[Tensor]:
        """The places of the trainable parameters in a vector like `flat`."""
        return _views(vector[: self.trained], [*self.params])

    def load(self, params: np.ndarray | Tensor) -> None:
        """Set the model."""
        source = torch.from_numpy(params) if isinstance(params, np.ndarray) else params
        self.flat.copy_(source)
        self._place_buffers()
        for kept in self._outside:
            kept.restore()

    def collect(self) -> Tensor:
        """`flat`, after a module that put new tensors in its buffers' places has been followed."""
        for (owner, name), view in zip(self._owners, self._views, strict=True):
            buffer = owner._buffers[name]
            if buffer is not view and buffer is not None:
                view.copy_(buffer)
        self._place_buffers()
        return self.flat

    def vector(self) -> np.ndarray:
        """The model in float64."""
        return self.collect().detach().to("cpu", torch.float64, copy=True).numpy()

    def named(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of a vector by the names of a state_dict; tied parameters under every name."""
        places = {}
        held, views = (*self.params, *self._held), (*self.params, *self._views)
        for part, view in zip(held, views, strict=True):
            places[part.data_ptr()] = (view.storage_offset(), view.numel())
        parts = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            if value.numel() and value.data_ptr() in places:
                begin, count = places[value.data_ptr()]
                parts[name] = vector[begin : begin + count]
        return parts

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
            raise ValueError(
                f"these weights are of another architecture than {type(self.module).__name__}: "
                + "; ".join(sorted(wrong)[:5] + ["..."] * (len(wrong) > 5))
            )
        tensors = {name: torch.as_tensor(value) for name, value in state.items()}
        moved = self.named(np.arange(self.size))
        # What is outside the vector must be equal, or it would be lost silently; but for counters,
        # whole numbers without axes: those of batch norm always differ.
        for name, value in own.items():
            one, other = value.detach().cpu(), tensors[name].detach().cpu()
            counter = one.dim() == 0 and not one.is_floating_point()
            kind = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
            if not (name in moved or counter or torch.equal(one.to(kind), other.to(kind))):
                what = "frozen" if name in dict(self.module.named_parameters()) else "not trained"
                raise ValueError(
                    f"{name} is {what} and differs from what make_module makes; load it inside "
                    "make_module"
                )
        self.module.load_state_dict(tensors)


def _views(flat: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """The places of `parts`, one after the other in `flat`."""
    pieces = flat.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


class _Kept:
    """A tensor of a layer that no vector holds, and the value it was made with."""

    def __init__(self, table: dict[str, Any], name: str) -> None:
        self.table, self.name, self.tensor = table, name, table[name]
        if self.tensor is not None:
            self.value = self.tensor.detach().clone()
            self.version = self.tensor._version

    def restore(self) -> None:
        """Undo what a module did to it, in its place or by putting another one there."""
        if self.table[self.name] is not self.tensor:
            self.table[self.name] = self.tensor
        if self.tensor is not None and self.tensor._version != self.version:
            with torch.no_grad():
                self.tensor.copy_(self.value)
            self.version = self.tensor._version


def _float_buffers(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """The layers with float buffers that belong to the model, and the buffers' own names."""
    kept, owners = set(module.state_dict()), []
    for full, buffer in module.named_buffers():
        owner, _, name = full.rpartition(".")
        if full in kept and buffer.is_floating_point():
            owners.append((module.get_submodule(owner), name))
    return owners


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters, each once, in the module's order."""
    params = []
    for name, param in module.named_parameters():
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"parameter {name} has no shape yet: call the module once on an example inside "
                "make_module, so that its lazy layers get theirs"
            )
        if param.requires_grad:
            params.append(param)
    kind = type(module).__name__
    if not params:
        raise ValueError(f"{kind} has no trainable parameters")
    types = {param.dtype for param in params}
    if len(types) > 1 or not next(iter(types)).is_floating_point:
        listed = ", ".join(sorted(str(t) for t in types))
        raise ValueError(f"the parameters of {kind} must all be of one float type, got {listed}")
    if types == {torch.bfloat16}:
        raise ValueError(
            f"the parameters of {kind} are torch.bfloat16, which NumPy does not have: return "
            "module.float() from make_module"
        )
    return params
