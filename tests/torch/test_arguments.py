"""What the functions for networks are given is refused by name."""

# pyright: reportMissingImports=false
import numpy as np
import pytest
from bad_arguments import complaints
from torch import nn

from isfed import FedAvg, FederatedData, Problem
from isfed.torch import Network, diagnose, evaluate, evaluate_agents, load_model, save_model, train


def linear():
    return nn.Linear(2, 2)


NETWORK = Network(linear)
X, Y = np.eye(2, dtype=np.float32), np.array([0, 1])
DATA = FederatedData(X, Y, [0, 1, 2])  # pyright: ignore[reportArgumentType]
MODEL = NETWORK.initial()
GIVEN = {"problem": lambda: Problem(DATA, NETWORK, 1, 1)}
CALLS = {
    "Network": (Network, {"make_module": linear}, {
        "make_module": "function", "loss": "function", "score": "word", "other_layers": "word",
        "optimizer": "function?", "device": "word", "seed": "whole"}),
    "train": (train, {**GIVEN, "algorithm": lambda: FedAvg(step_size=0.1, num_active=1),
                      "rounds": 1}, {
        "problem": "object", "algorithm": "object", "rounds": "whole", "every": "whole",
        "target": "number?", "seed": "whole", "initial": "array", "form": "word",
        "resume": "flag", "threads": "whole?"}),
    "diagnose": (diagnose, {**GIVEN, "num_active": 1, "step_size": 0.1, "draws": 4}, {
        "problem": "object", "num_active": "whole", "step_size": "positive", "params": "array",
        "draws": "whole", "seed": "whole"}),
    "evaluate": (evaluate, {"network": NETWORK, "params": MODEL, "x": X, "y": Y}, {
        "network": "object", "params": "array"}),
    "evaluate_agents": (evaluate_agents, {"network": NETWORK, "params": MODEL, "data": DATA}, {
        "network": "object", "data": "object", "params": "array"}),
    "save_model": (save_model, {"network": NETWORK, "params": MODEL, "path": "x.pt"}, {
        "network": "object", "params": "array", "path": "path"}),
    "load_model": (load_model, {"network": NETWORK, "path": "x.pt"}, {
        "network": "object", "path": "path"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, given, kinds = CALLS[name]
    assert complaints(call, given, kinds) == []
