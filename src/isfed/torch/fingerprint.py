"""Text that tells two networks, losses or optimizers apart, the same in every process.

A checkpoint of one must not be continued with the other. Functions of one name may differ in their
code, modules of one shape in their `forward`, and losses in options that their repr leaves out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DEEPEST = 8  # values inside values that are looked at
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def function_name(function: Any, text: Callable[[Any], str] = repr) -> str:
    """A function's name, and the arguments that a partial one already has, as `text` shows them."""
    if isinstance(function, partial):
        given = [*map(text, function.args)]
        given += [f"{name}={text(value)}" for name, value in function.keywords.items()]
        return f"{function_name(function.func, text)}({', '.join(given)})"
    return getattr(function, "__qualname__", None) or text(function)


def value_fingerprint(thing: Any, depth: int = DEEPEST) -> str:
    """A value as text that two different values do not share, as far as it can be seen."""
    if isinstance(thing, PLAIN):
        return repr(thing)
    inner = partial(value_fingerprint, depth=depth - 1)
    if depth == 0:  # functions may hold each other
        return type(thing).__qualname__
    if isinstance(thing, Tensor | np.ndarray):
        array = np.ascontiguousarray(torch.as_tensor(thing).detach().cpu().numpy())
        return f"{array.dtype}{array.shape} {_digest(array.tobytes())}"
    if isinstance(thing, set | frozenset):  # whose order differs from process to process
        return f"{type(thing).__name__}({', '.join(sorted(map(inner, thing)))})"
    if isinstance(thing, list | tuple):
        return f"{type(thing).__name__}({', '.join(map(inner, thing))})"
    if isinstance(thing, dict):
        return f"dict({', '.join(f'{inner(k)}: {inner(v)}' for k, v in thing.items())})"
    if isinstance(thing, partial):
        return f"{function_name(thing, inner)} {inner(thing.func)}"
    if isinstance(thing, FunctionType):
        return f"{thing.__qualname__} {_digest(*_function(thing, inner))}"
    if isinstance(thing, nn.Module):
        return _module(thing)
    return getattr(thing, "__qualname__", None) or type(thing).__qualname__


def _module(module: nn.Module) -> str:
    """A module, a loss for instance, with its options, its code and all its tensors."""
    parts = [repr(module)]
    for name, layer in module.named_modules():
        options = {k: v for k, v in vars(layer).items() if isinstance(v, PLAIN)}
        kind, code = type(layer), torch.__version__
        if not kind.__module__.startswith("torch."):  # else the version says enough
            own = [f for f in vars(kind).values() if isinstance(f, FunctionType)]
            code = _digest(*(part for f in own for part in _function(f, value_fingerprint)))
        parts.append(f"{name} {kind.__qualname__} {options} {code}")
    for named in (module.state_dict().items(), module.named_buffers()):
        parts += [f"{name} {value_fingerprint(value)}" for name, value in named]
    return f"{type(module).__qualname__} {_digest(*(part.encode() for part in parts))}"


def _function(function: FunctionType, text: Callable[[Any], str]) -> Iterator[bytes]:
    yield from _code(function.__code__)
    yield text(function.__defaults__ or ()).encode()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a cell that is still empty
            yield text(cell.cell_contents).encode()


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames)).encode()
    for constant in code.co_consts:
        inner = isinstance(constant, CodeType)
        yield from _code(constant) if inner else [value_fingerprint(constant).encode()]


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:12]
