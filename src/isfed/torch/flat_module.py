"""A module whose model is one flat tensor, and tensors between NumPy and PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def as_tensor(array: Any) -> Tensor:
    """A tensor over the memory of an array, which is only read; a reversed one is copied."""
    if isinstance(array, np.ndarray) and any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        # Federated data is read-only; PyTorch warns that it cannot keep it so. We only read.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(array)


def as_float64(values: Tensor) -> np.ndarray:
    """The numbers of a tensor."""
    return values.detach().to("cpu", torch.float64).numpy()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """PyTorch's generators start from `seed` inside, and are outside what they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


class FlatModule:
    """A module on its device, with `flat`, the vector that its model consists of.

    First come the trainable parameters, views of `flat`. Then come copies of the float buffers that
    a state_dict holds, such as the running means of batch norm, which cross like parameters. Frozen
    parameters, integer buffers and buffers that a state_dict leaves out are not in it: whenever a
    model is loaded they get the values they were made with, so that no turn sees what another left.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module, self.device = module.to(device), device
        self.params = _trainable(self.module)
        self.dtype = self.params[0].dtype
        self.numpy_type = np.dtype(str(self.dtype).removeprefix("torch."))
        self.trained = sum(param.numel() for param in self.params)  # entries of `flat` that learn
        owners = _float_buffers(self.module)
        for table, name in owners:
            table[name] = table[name].detach().clone(memory_format=torch.contiguous_format)
        parts: list[Tensor] = [*self.params, *(table[name] for table, name in owners)]
        self.flat = torch.cat([part.detach().reshape(-1).to(self.dtype) for part in parts])
        self.size = self.flat.numel()
        views = _views(self.flat, parts)
        for param, view in zip(self.params, views, strict=False):
            param.data = view
        self._places = dict(zip(parts, views, strict=True))
        places = zip(owners, views[len(self.params) :], strict=True)
        self._buffers = [_Kept(*owner, view) for owner, view in places]
        tables = [t for m in self.module.modules() for t in (m._parameters, m._buffers)]
        self._outside = [
            _Kept(table, name, None if tensor is None else tensor.detach().clone())
            for table in tables
            for name, tensor in table.items()
            if tensor is None or tensor not in self._places
        ]

    def views_of(self, vector: Tensor) -> list[Tensor]:
        """The places of the trainable parameters in a vector like `flat`, or in rows of such."""
        return _views(vector[..., : self.trained], [*self.params])

    def load(self, params: np.ndarray | Tensor) -> None:
        """Set the model."""
        source = torch.from_numpy(params) if isinstance(params, np.ndarray) else params
        self.flat.copy_(source)
        for kept in self._buffers:
            kept.restore()
        for kept in self._outside:
            kept.restore(unless=kept.version)

    def collect(self) -> Tensor:
        """`flat` with the present buffers, in whose places a module may have put new tensors."""
        for kept in self._buffers:
            buffer = kept.table[kept.name]
            if buffer is not None:
                kept.value.copy_(buffer.detach())
        return self.flat

    def vector(self) -> np.ndarray:
        """The model in float64."""
        return self.collect().detach().to("cpu", torch.float64, copy=True).numpy()

    def named(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The parts of a vector by the names of a state_dict; tied parameters under every name."""
        places = {
            part.data_ptr(): slice(view.storage_offset(), view.storage_offset() + view.numel())
            for part, view in self._places.items()
        }
        return {
            name: vector[places[value.data_ptr()]]
            for name, value in self.module.state_dict(keep_vars=True).items()
            if value.numel() and value.data_ptr() in places
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all that the model consists of, on the CPU, by name."""
        return {k: v.detach().cpu().clone() for k, v in self.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all that the model consists of, or raise a ValueError that names what differs."""
        own = self.module.state_dict()
        wrong = [f"{name} is missing" for name in own if name not in state]
        wrong += [f"{name} is not in this module" for name in state if name not in own]
        shapes = {n: (tuple(np.shape(state[n])), tuple(own[n].shape)) for n in own if n in state}
        wrong += [f"{n} has shape {a}, expected {b}" for n, (a, b) in shapes.items() if a != b]
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
    """The places of `parts`, one after the other in the last axis of `flat`."""
    pieces, rows = flat.split([part.numel() for part in parts], -1), flat.shape[:-1]
    return [piece.view(rows + part.shape) for piece, part in zip(pieces, parts, strict=True)]


class _Kept:
    """A tensor of a layer that is no view of `flat`, and the value to give it."""

    def __init__(self, table: dict[str, Any], name: str, value: Any) -> None:
        self.table, self.name, self.tensor, self.value = table, name, table[name], value
        self.version = None if self.tensor is None else self.tensor._version

    def restore(self, unless: int | None = None) -> None:
        """Put it back into its place, with its value `unless` it has that version."""
        self.table[self.name] = self.tensor
        if self.tensor is not None and self.tensor._version != unless:
            with torch.no_grad():
                self.tensor.copy_(self.value)
            self.version = self.tensor._version


def _float_buffers(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """The float buffers that belong to the model: the tables of their layers, and their names."""
    kept = set(module.state_dict())
    names = [n for n, b in module.named_buffers() if n in kept and b.is_floating_point()]
    parts = (name.rpartition(".") for name in names)
    return [(module.get_submodule(owner)._buffers, name) for owner, _, name in parts]


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


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of nested `nn.Sequential`s in their order."""
    if type(module) is nn.Sequential:
        for child in module:
            yield from layers_of(child)
    elif type(module) is not nn.Identity:
        yield module


def hook_tables(module: nn.Module) -> Iterator[dict]:
    """The tables of hooks, which may be filled later: PyTorch calls them beside the layers."""
    names = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
    for name in names:
        yield from (getattr(layer, f"_{name}") for layer in module.modules())
        yield getattr(nn.modules.module, f"_global_{name}")


def channels_last(x: Tensor) -> Tensor:
    """The same numbers, those of one place next to each other."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    # One channel is in both orders; its strides tell the convolution which one to go on with.
    high, wide = x.shape[2:]
    return x.contiguous().as_strided(x.shape, (high * wide, 1, wide, 1))


def image_array(x: Tensor) -> np.ndarray:
    """(B, H, W, C) the numbers of a tensor."""
    return channels_last(x).permute(0, 2, 3, 1).numpy()
