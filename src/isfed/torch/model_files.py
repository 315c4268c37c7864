"""Models on disk, by name: safetensors, or what torch.save writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from isfed.base.argument_checks import checked
from isfed.torch.module_checks import check_params
from isfed.torch.network import Network

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth")


def _check_suffix(path: Path) -> None:
    if path.suffix not in (SAFETENSORS, *PICKLED):
        raise ValueError(
            f"{path} ends in {path.suffix or 'nothing'!r}; expected {SAFETENSORS}, or "
            f"{' or '.join(PICKLED)} for a state_dict"
        )


@checked
def save_model(network: Network, params: np.ndarray, path: str | Path) -> None:
    """Write a model; a file that is there is replaced once the new one is complete.

    Args:
        network: whose architecture it is.
        params: (M,) the model.
        path: ends in .safetensors, or in .pt or .pth for a state_dict.
    """
    path = Path(path)
    _check_suffix(path)
    check_params(params, network.num_params())
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    state = {name: value.contiguous() for name, value in network.state_dict(params).items()}
    unfinished = path.with_name(f".{path.name}.unfinished")
    if path.suffix == SAFETENSORS:
        from safetensors.torch import save_file

        save_file(state, unfinished)
    else:
        torch.save(state, unfinished)
    unfinished.replace(path)


@checked
def load_module_params(network: Network, path: str | Path) -> np.ndarray:
    """The model in a file, as one vector; a ValueError if it is of another architecture.

    Args:
        network: whose architecture it is.
        path: what `save_model` wrote, or a state_dict.
    """
    path = Path(path)
    _check_suffix(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        if path.suffix == SAFETENSORS:
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, MemoryError):
        raise  # of the disk or the machine, not of the content
    except Exception as error:  # unpickling what is no model can end in any of them
        raise ValueError(f"{path} cannot be read as a model: {error}") from error
    unread = f"{path} cannot be read as a model"
    if not isinstance(state, Mapping):
        raise ValueError(f"{unread}: it holds a {type(state).__name__}, expected a state_dict")
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            raise ValueError(
                f"{unread}: {name!r} is of type {kind}, expected a state_dict of tensors"
            )
    try:
        return network.params(state)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


load_model = load_module_params  # the public name
