"""Models on disk, by name: safetensors, or what torch.save writes."""

# pyright: reportMissingImports=false

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch

from isfed.base.arguments import checked
from isfed.torch.check import check_params
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

    network: whose architecture it is.
    params: (M,) the model.
    path: ends in .safetensors, or in .pt or .pth for a state_dict.
    """
    path = Path(path)
    _check_suffix(path)
    check_params(params, network.num_params())
    state = {name: value.contiguous() for name, value in network.state_dict(params).items()}
    unfinished = path.with_name(f".{path.name}.unfinished")
    if path.suffix == SAFETENSORS:
        from safetensors.torch import save_file

        save_file(state, unfinished)
    else:
        torch.save(state, unfinished)
    unfinished.replace(path)


@checked
def load_model(network: Network, path: str | Path) -> np.ndarray:
    """The model in a file, as one vector; a ValueError if it is of another architecture.

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
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path} cannot be read as a model: {error}") from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":
            raise
        raise ValueError(f"{path} cannot be read as a model: {error}") from error
    try:
        return network.params(state)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
