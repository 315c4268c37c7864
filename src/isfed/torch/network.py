"""A neural network as a loss: an nn.Module and an unreduced loss of its outputs; its files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from isfed.base.argument_checks import check_fields, check_seed, checked
from isfed.federation.agent import AgentConfig
from isfed.problems import FederatedData, Problem
from isfed.torch.agents import TorchAgents
from isfed.torch.example_norms import ExampleNorms, OtherLayers
from isfed.torch.fingerprint import function_name, value_fingerprint
from isfed.torch.flat_module import FlatModule, as_float64, as_tensor, seeded
from isfed.torch.module_checks import check_device, check_module, check_params, targets_for
from isfed.torch.module_worker import (
    OptimizerFactory,
    Trial,
    Worker,
    correct_examples,
    per_example,
)

Score = Literal["last_layer", "exact"]
SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth")


@dataclass(frozen=True, eq=False)
class Network:
    """A neural network, usable wherever a loss is: `Problem(data, Network(...))`.

    Args:
        make_module: a function without arguments that returns the nn.Module; it is called once per
            thread, always under the same `seed`, so that frozen parameters are the same everywhere.
        loss: outputs and targets to one loss per example, i.e. with `reduction="none"`.
        score: what stands for the norm of an example's gradient. "last_layer" is the bound of
            Katharopoulos and Fleuret (2018), the norm of the loss's gradient in the outputs, at
            almost no cost; "exact" computes the norm itself.
        other_layers: what "exact" does with layers it has no rule for: "refuse" them by name, or
            send them through "func" (torch.func, slower).
        optimizer: the agents' own optimizer, made anew for every turn as
            `optimizer(params, lr=step)`, for instance `partial(torch.optim.SGD, momentum=0.9)`;
            plain gradient steps without. Its lr is the method's step size.
        device: "cpu", "cuda", "cuda:1", "mps".
        seed: the seed of the initial parameters.

    Examples:
        >>> network = Network(lambda: nn.Linear(2, 3))
        >>> network.num_params(), network.initial().shape
        (9, (9,))
    """

    make_module: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor] = field(
        default_factory=partial(nn.CrossEntropyLoss, reduction="none")
    )
    score: Score = field(default="last_layer", kw_only=True)
    other_layers: OtherLayers = field(default="refuse", kw_only=True)
    optimizer: OptimizerFactory | None = field(default=None, kw_only=True)
    device: str = field(default="cpu", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False)
    _trial: Trial = field(default_factory=Trial, init=False, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.make_module) or isinstance(self.make_module, nn.Module):
            raise TypeError(
                f"make_module={type(self.make_module).__name__} must be a function that returns a "
                "new module, e.g. lambda: nn.Linear(784, 10)"
            )
        if isinstance(self.loss, nn.Module) and getattr(self.loss, "reduction", "none") != "none":
            kind = type(self.loss).__name__
            raise ValueError(
                f"the loss must be unreduced: give {kind}(reduction='none') instead of "
                f"reduction={getattr(self.loss, 'reduction', None)!r}"
            )
        check_fields(self)
        check_seed(self.seed)
        check_device(self.device)
        if isinstance(self.optimizer, partial) and "lr" in self.optimizer.keywords:
            raise ValueError(
                f"optimizer={function_name(self.optimizer)} must not have an lr: the step_size of "
                "the method is the lr of the agents' optimizer"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _local=threading.local())

    def __repr__(self) -> str:
        """What the network computes, the same in every process: fingerprints are made of it."""
        parts = (self._made(), self.loss, self.optimizer)
        module, loss, optimizer = map(value_fingerprint, parts)
        return (
            f"Network({module}, {self.num_params()} parameters, loss={loss}, "
            f"score={self.score!r}, optimizer={optimizer}, seed={self.seed})"
        )

    def _made(self, seed: int | None = None) -> nn.Module:
        with seeded(self.seed if seed is None else seed):
            return self.make_module()

    @property
    def worker(self) -> Worker:
        """The module of this thread."""
        if not hasattr(self._local, "worker"):
            self._local.worker = self.make_worker()
        return self._local.worker

    def make_worker(self) -> Worker:
        """A module of its own, in training mode, at the initial parameters."""
        made = self._made()
        if not isinstance(made, nn.Module):
            raise TypeError(f"make_module returned {type(made).__name__}, expected an nn.Module")
        flat = FlatModule(made, torch.device(self.device))
        flat.module.train()
        exact = None
        if self.score == "exact":
            exact = ExampleNorms(flat.module, self._losses, self.other_layers, self._trial.others)
        return Worker(flat, self.loss, exact, self._trial)

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return per_example(self.loss(outputs, targets))

    # What makes it a loss.

    without_optimum = True  # the minimiser of a network is unknown
    diagnosed_by = "isfed.torch.diagnose"

    @property
    def not_for_objects(self) -> str | None:
        """Why agents that know nothing but `gradient` cannot train it; None if they can."""
        if self.optimizer is not None:
            given = f"Network(optimizer={function_name(self.optimizer)})"
            has = f"{given} steps by an optimizer of its own"
        elif self.worker.flat.trained < self.worker.flat.size:
            has = (
                "this network has buffers that change during training (such as the running means "
                "of batch norm)"
            )
        else:
            return None
        return (
            f"{has}, which agents as objects do not know; use engine='agents' (or leave the engine "
            "out), and flower.torch_turn instead of agent_turn"
        )

    def make_agents(self, problem: Problem, rules: AgentConfig, **address: int) -> TorchAgents:
        """The agents that train it."""
        return TorchAgents(problem, rules, **address)

    def num_params(self, num_features: int | None = None) -> int:
        """The length of the model: trainable parameters and float buffers."""
        return self.worker.flat.size

    def prepare(self, data: FederatedData) -> FederatedData:
        """The data in the module's types, after a trial on its first rows."""
        worker, features = self.make_worker(), data.features  # a trial changes some buffers
        if features.dtype.kind == "f":
            features = np.asarray(features, worker.flat.numpy_type)
        targets = targets_for(self.loss, data.targets, features.dtype)
        check_module(worker, features, targets, self.seed, self.optimizer)
        same = features is data.features and targets is data.targets
        return data if same else FederatedData(features, targets, data.offsets, data.weights)

    def initial(self, seed: int | None = None) -> np.ndarray:
        """The parameters of a fresh module; another seed gives others."""
        return FlatModule(self._made(seed), torch.device("cpu")).vector()

    def gradient(
        self, params: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weighted mean gradient of a batch, and the score of every example."""
        worker = self.worker
        worker.flat.load(params)
        inputs, targets = self.tensors(x, y)
        weights = torch.as_tensor(weight, dtype=worker.flat.dtype, device=worker.flat.device)
        # Scores come from the weighted losses: a weight of 0 leaves nothing to compute them from.
        positive = bool(np.all(np.asarray(weight) > 0.0))
        batch = worker.batch(inputs, targets, weights, scored=positive)
        gradient = np.zeros(worker.flat.size)  # buffers have none
        gradient[: worker.flat.trained] = worker.flatten(batch).cpu().numpy()
        scores = batch.norms if batch.norms is not None else worker.scores(inputs, targets)
        return gradient, as_float64(scores)

    def scores(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The score of every example, without a backward pass where the bound is all it takes."""
        self.worker.flat.load(params)
        return as_float64(self.worker.scores(*self.tensors(x, y)))

    def _evaluate(self, measure: Callable, params: np.ndarray, x: Any, y: Any) -> np.ndarray:
        self.worker.flat.load(params)
        return as_float64(self.worker.evaluate(measure, *self.tensors(x, y)))

    def values(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The loss of every example, in evaluation mode."""
        return self._evaluate(self._losses, params, x, y)

    def losses_and_correct(self, params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n, 2) the loss of every example, and 1 where its class is predicted, 0 where not.

        In evaluation mode; nan where targets are not classes.
        """

        def measure(outputs: Tensor, targets: Tensor) -> Tensor:
            losses = self._losses(outputs, targets)
            correct = correct_examples(self.loss, outputs, targets)
            return torch.stack([losses, correct.to(losses)], 1)

        return self._evaluate(measure, params, x, y)

    def predict(self, params: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The outputs of the module, in evaluation mode."""
        return self._evaluate(lambda outputs, _: outputs, params, x, np.zeros(len(x)))

    def tensors(self, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        """Rows and targets as tensors of the types that the module and the loss take."""
        flat = self.worker.flat
        inputs = as_tensor(np.asarray(x))
        inputs = inputs.to(flat.dtype) if inputs.is_floating_point() else inputs
        targets = targets_for(self.loss, np.asarray(y), flat.numpy_type)
        return inputs.to(flat.device), as_tensor(targets).to(flat.device)

    # What a model is outside of isfed.

    def state_dict(self, params: np.ndarray) -> dict[str, Tensor]:
        """The model by name, as `nn.Module.load_state_dict` takes it."""
        flat = self.make_worker().flat
        flat.load(params)
        return flat.state_dict()

    def params(self, state: Mapping[str, Any]) -> np.ndarray:
        """The model as one vector, from a state_dict of the same architecture."""
        flat = self.make_worker().flat
        flat.load_state_dict(state)
        return flat.vector()

    def module(self, params: np.ndarray) -> nn.Module:
        """A module of the user's own with this model, in evaluation mode."""
        module = self._made()
        module.load_state_dict(self.state_dict(params))
        return module.eval()


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
        if not isinstance(value, Tensor):
            what = f"{name!r} is of type {type(value).__name__}"
            raise ValueError(f"{unread}: {what}, expected a state_dict of tensors")
    try:
        return network.params(state)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


load_model = load_module_params  # the public name
