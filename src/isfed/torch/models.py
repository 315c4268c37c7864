"""Small models, and optimizers, by name: for configurations and the studies."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from math import prod
from types import FunctionType
from typing import Any

import torch
from torch import nn

from isfed.base.import_by_name import import_named

MakeModel = Callable[..., nn.Module]


def softmax(shape: Sequence[int], classes: int, hidden: int) -> nn.Module:
    """Softmax regression from zero; `hidden` is not used."""
    linear = nn.Linear(prod(shape), classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear)


def mlp(shape: Sequence[int], classes: int, hidden: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def cnn(shape: Sequence[int], classes: int, hidden: int) -> nn.Module:
    """Two convolutions of 3 x 3 with 8 and 16 channels, then one hidden layer.

    For images of shape (height, width) or (channels, height, width).
    """
    if len(shape) not in (2, 3) or min(shape[-2:]) < 4:
        raise ValueError(
            "a cnn needs images of at least 4 x 4 pixels, (height, width) or (channels, height, "
            f"width), got rows of shape {tuple(shape)}"
        )
    high, wide = shape[-2] // 4, shape[-1] // 4
    channels = shape[0] if len(shape) == 3 else 1
    front = [] if len(shape) == 3 else [nn.Unflatten(1, (1, shape[0]))]
    return nn.Sequential(
        *front, nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * high * wide, hidden), nn.ReLU(), nn.Linear(hidden, classes),
    )  # fmt: skip


_WANTED = "it must be a function of shape, classes and hidden that returns an nn.Module"
MODELS: dict[str, MakeModel] = {"softmax": softmax, "mlp": mlp, "cnn": cnn}


def register_model(name: str, make: MakeModel) -> None:
    """Let `model = name` in a configuration stand for `make(shape, classes, hidden)`."""
    if MODELS.get(name, make) is not make:
        raise ValueError(f"the model {name!r} is already registered")
    MODELS[name] = make


def find_model(name: str) -> MakeModel:
    """A model by its name, or by "package.module:function"."""
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        raise ValueError(
            f"model={name!r} must be one of {', '.join(MODELS)}, or package.module:function"
        )
    try:
        found = import_named(name)
        signature(found).bind((1,), 2, 3)
    except ValueError as error:
        raise ValueError(f"model={error}") from error
    except TypeError as error:
        raise ValueError(f"model={name!r}: {error}; {_WANTED}") from error
    if isinstance(found, nn.Module):
        raise ValueError(f"model={name!r} is a module; {_WANTED}")
    if not (_is_function(found) or _is_class(found, nn.Module)):
        raise ValueError(f"model={name!r} is {found!r}; {_WANTED}")
    return found


def _is_function(found: Any) -> bool:
    """Whether it was written in Python; what is built in could do anything with any argument."""
    return isinstance(found, FunctionType)


def _is_class(found: Any, parent: type) -> bool:
    return isinstance(found, type) and issubclass(found, parent)


def find_optimizer(name: str, options: Mapping[str, float]) -> Callable[..., torch.optim.Optimizer]:
    """The class of torch.optim of that name, or "package.module:function", with its options."""
    known = {
        key: kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    known.pop("Optimizer", None)
    if name not in known and ":" not in name:
        raise ValueError(
            f"optimizer={name!r} must be one of {', '.join(sorted(known))}, or "
            "package.module:function"
        )
    try:
        found: Any = known[name] if name in known else import_named(name)
    except ValueError as error:
        raise ValueError(f"optimizer={error}") from error
    if not (_is_function(found) or _is_class(found, torch.optim.Optimizer)):
        raise ValueError(f"optimizer={name!r} is {found!r}, not a function or an Optimizer")
    for option in options:
        if option not in signature(found).parameters:
            raise ValueError(f"optimizer={name!r} has no {option}")
    return partial(found, **options) if options else found
