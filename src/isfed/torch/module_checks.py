"""What is checked of a module, its loss and its data before the first round."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isfed.base.argument_checks import as_numbers
from isfed.torch.example_norms import AUDIT_TOLERANCE
from isfed.torch.fingerprint import function_name
from isfed.torch.flat_module import as_tensor, seeded
from isfed.torch.module_worker import Worker

NEAR = 1000  # rows among which one that differs from the first is looked for
CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
NUMBER_LOSSES = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss, nn.SoftMarginLoss,
)  # fmt: skip


def check_params(params: Any, size: int) -> None:
    """Raise a ValueError unless it is a model of that many numbers; one that diverged may be."""
    if as_numbers(params, name="params").shape != (size,):
        raise ValueError(f"params must be {size} numbers, got shape {np.shape(params)}")


def check_device(name: str) -> None:
    """Raise a ValueError for a device that this machine does not have."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is unknown; use 'cpu', 'cuda' or 'mps'") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device={name!r} is not supported; use 'cpu', 'cuda' or 'mps'")
    count = torch.cuda.device_count()
    if device.type == "cuda" and count <= (device.index or 0):
        raise ValueError(
            f"device={name!r}: PyTorch finds {count or 'no'} CUDA device(s) here; use device='cpu'"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f"device={name!r}: PyTorch finds no MPS here; use device='cpu'")


def check_module(
    worker: Worker, features: np.ndarray, targets: np.ndarray, seed: int, optimizer: Any
) -> None:
    """A trial of the module, its loss and the agents' optimizer on the first rows of the data."""

    def tensor(array: np.ndarray) -> Tensor:
        return as_tensor(array).to(worker.flat.device)

    with seeded(seed):
        x, y = tensor(features[:1]), tensor(targets[:1])
        outputs = _check_outputs(worker, x, y)
        _check_labels(worker.loss, targets, outputs)
        _warn_of_softmax(worker.loss, outputs)
        if worker.exact_norms is not None:
            near = range(1, min(len(features), NEAR))
            other = next((i for i in near if not np.array_equal(features[i], features[0])), None)
            if other is not None:
                rows = [0, other]
                _check_examples_apart(worker, tensor(features[rows]), tensor(targets[rows]), seed)
            worker.exact_norms.audit(x, y)
    if optimizer is not None:
        _check_optimizer(optimizer, worker.flat.params)


def _check_optimizer(factory: Any, params: list[nn.Parameter]) -> None:
    """Take one step of the agents' optimizer, or raise an error that says why it cannot be one."""
    name = function_name(factory)
    try:
        made = factory(params, lr=1e-3)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"optimizer={name} cannot be called as optimizer(params, lr=step): {error}"
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer={name} returned {type(made).__name__}, expected a torch.optim.Optimizer"
        )
    for param in params:
        param.grad = torch.zeros_like(param)
    try:
        made.step()
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"optimizer={name} cannot take a step from the gradients alone: {error}; use one that "
            "needs no closure, e.g. torch.optim.SGD or torch.optim.Adam"
        ) from error


def _check_examples_apart(worker: Worker, x: Tensor, y: Tensor, seed: int) -> None:
    """Raise a ValueError if the loss of the first of two examples depends on the second.

    Both passes are over two rows, under one seed: dropout is the same in them.
    """
    start = worker.flat.collect().clone()
    losses = []
    for rows in ((0, 0), (0, 1)):
        worker.flat.load(start)
        with seeded(seed), torch.no_grad():
            losses.append(worker.values(x[[*rows]], y[[*rows]])[0])
    if not torch.isclose(losses[0], losses[1], rtol=AUDIT_TOLERANCE, atol=1e-6):
        raise ValueError(
            f"{type(worker.module).__name__} mixes the examples of a batch: the loss of the first "
            f"is {losses[0]:.6g} beside itself and {losses[1]:.6g} beside another one, so no "
            "example has a gradient of its own. Use score='last_layer'"
        )


def targets_for(loss: Any, targets: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Targets in the type the loss takes: classes as int64, other numbers in the module's type."""
    kind = targets.dtype.kind
    if isinstance(loss, CLASS_LOSSES) and (kind in "iu" or targets.ndim == 1):
        classes = targets.astype(np.int64, copy=False)
        odd = np.flatnonzero(classes.reshape(-1) != targets.reshape(-1))
        if odd.size:
            raise ValueError(
                f"targets[{odd[0]}]={targets.reshape(-1)[odd[0]]} but {type(loss).__name__} needs "
                "whole numbers, one class per example"
            )
        return classes
    if isinstance(loss, NUMBER_LOSSES) or kind == "f":
        return targets.astype(dtype if dtype.kind == "f" else np.float32, copy=False)
    return targets.astype(np.int64, copy=False) if kind in "iu" else targets


def _check_labels(loss: Any, targets: np.ndarray, outputs: Tensor) -> None:
    """Raise a ValueError for the first class that the module has no output for."""
    flat = targets.reshape(-1)
    if isinstance(loss, nn.BCELoss | nn.BCEWithLogitsLoss):
        bad = np.flatnonzero(~((flat >= 0.0) & (flat <= 1.0)))
        if bad.size:
            raise ValueError(
                f"targets[{bad[0]}]={flat[bad[0]]:g} but {type(loss).__name__} takes numbers from "
                f"0 to 1 ({bad.size} others)"
            )
    if targets.dtype.kind not in "iu":
        return
    if isinstance(loss, CLASS_LOSSES):
        classes = outputs.shape[1] if outputs.dim() > 1 else 1
        ignored = getattr(loss, "ignore_index", -100)
        bad = np.flatnonzero(((flat < 0) | (flat >= classes)) & (flat != ignored))
        if bad.size:
            raise ValueError(
                f"targets[{bad[0]}]={flat[bad[0]]} but the module has {classes} outputs, for the "
                f"classes 0 to {classes - 1} ({bad.size} such)"
            )
    elif targets.ndim == 1 and outputs.device.type == "cpu":  # elsewhere a wrong index is fatal
        for place in (int(targets.argmin()), int(targets.argmax())):
            try:  # only a trial shows which classes such a loss takes
                loss(outputs[:1], torch.as_tensor(targets[place : place + 1]))
            except (IndexError, RuntimeError) as error:  # the first example's target went through
                raise ValueError(
                    f"targets[{place}]={targets[place]} but the module's outputs have shape "
                    f"{tuple(outputs.shape[1:])} per example: {error}"
                ) from error


def _check_outputs(worker: Worker, x: Tensor, y: Tensor) -> Tensor:
    """Run copies of one example; returns the outputs, or raises a ValueError.

    Notes whether the module changes its input, in training mode or in evaluation mode.
    """
    kind = type(worker.module).__name__
    shapes = []
    outputs: Any = None

    def run(rows: Tensor) -> Any:
        before = rows._version  # counts what is done in place
        outputs = worker.module(rows)
        worker.trial.writes = worker.trial.writes or rows._version != before
        return outputs

    for copies in (3, 2):  # two sizes: what grows with both is no loss per example
        rows, targets = torch.cat([x] * copies), torch.cat([y] * copies)
        try:
            outputs = run(rows)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{kind} cannot take features of shape {tuple(rows.shape)} and {rows.dtype}: "
                f"{error}"
            ) from error
        if not isinstance(outputs, Tensor):
            raise ValueError(
                f"{kind} returns {type(outputs).__name__}, expected one tensor; wrap it in a "
                "module that returns the outputs the loss needs"
            )
        if outputs.dim() < 1 or len(outputs) != copies:
            raise ValueError(
                f"{kind} returns a tensor of shape {tuple(outputs.shape)} for {copies} examples; "
                "expected one row of outputs per example"
            )
        bad = outputs[~torch.isfinite(outputs)]
        if bad.numel():
            raise ValueError(
                f"{kind} returns {bad[0].item()} for the first example at its initial parameters"
            )
        shapes.append(_loss_shape(worker, outputs, targets, y))
    worker.module.eval()
    with torch.no_grad():
        run(rows)
    worker.module.train()
    if shapes[0][1:] != shapes[1][1:]:
        raise ValueError(
            f"the loss of outputs {tuple(outputs.shape)} and targets {(2, *y.shape[1:])} has "
            f"shape {shapes[1]}, not one row per example; outputs and targets must have the same "
            "shape: give targets of shape (N, 1), or a module that drops its last axis"
        )
    return outputs


def _warn_of_softmax(loss: Any, outputs: Tensor) -> None:
    """Warn where softmax seems to be there twice, or not at all: it trains, but badly."""
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        return
    near: Any = {"rtol": 1e-3, "atol": 1e-3}
    one = torch.ones(len(outputs), dtype=outputs.dtype, device=outputs.device)
    shares = bool((outputs >= 0.0).all()) and torch.allclose(outputs.sum(1), one, **near)
    if isinstance(loss, nn.CrossEntropyLoss) and shares:
        warnings.warn(
            "the outputs of the module sum to 1, as after nn.Softmax: CrossEntropyLoss takes the "
            "softmax itself; leave nn.Softmax out",
            stacklevel=2,
        )
    if isinstance(loss, nn.NLLLoss) and not torch.allclose(outputs.exp().sum(1), one, **near):
        warnings.warn(
            "NLLLoss takes logarithms of probabilities, which the outputs of the module are not: "
            "end it with nn.LogSoftmax(1), or use CrossEntropyLoss",
            stacklevel=2,
        )


def _loss_shape(worker: Worker, outputs: Tensor, targets: Tensor, y: Tensor) -> tuple[int, ...]:
    try:
        with warnings.catch_warnings():  # PyTorch's about shapes; ours is an error and says more
            warnings.simplefilter("ignore", UserWarning)
            losses = worker.loss(outputs, targets)
    except IndexError:  # a class without an output, on which `_check_labels` has more to say
        _check_labels(worker.loss, y.cpu().numpy(), outputs)
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        whole = targets.is_floating_point() and bool((targets == targets.round()).all())
        hint = "; if they are classes, give whole numbers: targets.astype(int)" if whole else ""
        raise ValueError(
            f"the loss cannot take outputs of shape {tuple(outputs.shape)} with targets of shape "
            f"{tuple(targets.shape)} and {targets.dtype}: {error}{hint}"
        ) from error
    if losses.dim() < 1 or len(losses) != len(outputs):
        raise ValueError(
            f"the loss returns a tensor of shape {tuple(losses.shape)} for {len(outputs)} "
            "examples; it must be unreduced: use reduction='none'"
        )
    if not torch.isfinite(losses).all():
        raise ValueError(f"the loss of the first example is {losses.flatten()[0].item()}")
    return tuple(losses.shape)
