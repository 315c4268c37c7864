"""Small models, and optimizers, by name: for configurations and the studies."""

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


def find_model(name: str) -> MakeModel:
    """A model by its name, or by "package.module:function"."""
    make = _find("model", name, MODELS)
    if name in MODELS:
        return make
    try:
        signature(make).bind((1,), 2, 3)
    except (TypeError, ValueError) as error:
        raise ValueError(f"model={name!r}: {error}; {_WANTED}") from error
    if isinstance(make, nn.Module):
        raise ValueError(f"model={name!r} is a module; {_WANTED}")
    if not _makes(make, nn.Module):
        raise ValueError(f"model={name!r} is {make!r}; {_WANTED}")
    return make


def find_optimizer(name: str, options: Mapping[str, float]) -> Callable[..., torch.optim.Optimizer]:
    """The class of torch.optim of that name, or "package.module:function", with its options."""
    kinds = {key: kind for key, kind in vars(torch.optim).items() if isinstance(kind, type)}
    known = {key: kind for key, kind in kinds.items() if issubclass(kind, torch.optim.Optimizer)}
    known.pop("Optimizer", None)
    make = _find("optimizer", name, dict(sorted(known.items())))
    if not _makes(make, torch.optim.Optimizer):
        raise ValueError(f"optimizer={name!r} is {make!r}, not a function or an Optimizer")
    for option in options:
        if option not in signature(make).parameters:
            raise ValueError(f"optimizer={name!r} has no {option}")
    return partial(make, **options) if options else make


def _find(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name in known:
        return known[name]
    if ":" not in name:
        listed = ", ".join(known)
        raise ValueError(f"{what}={name!r} must be one of {listed}, or package.module:function")
    try:
        return import_named(name)
    except ValueError as error:
        raise ValueError(f"{what}={error}") from error


def _makes(maker: Any, kind: type) -> bool:
    """Whether it is a class of that kind, or a function that may make one.

    A function is one written in Python: what is built in could do anything with any argument.
    """
    return isinstance(maker, FunctionType) or (isinstance(maker, type) and issubclass(maker, kind))
