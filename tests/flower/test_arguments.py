"""What a federation's parts are given is refused by name, before anything is sent."""

# pyright: reportMissingImports=false
import numpy as np
import pytest
from bad_arguments import complaints

from isfed import ISFedAvg, LeastSquares
from isfed.flower import Strategy, agent_turn, own_turn

TURN = {
    "load": "function", "local_steps": "whole", "batch_size": "whole", "score_noise": "amount",
    "privacy": "object?", "reports_per_day": "whole?", "scores": "object?",
}  # fmt: skip
CALLS = {
    "agent_turn": (agent_turn, {"load": lambda _: (np.eye(2), np.ones(2)), "loss": LeastSquares()},
                   {**TURN, "loss": "object"}),
    "own_turn": (own_turn, {}, {"fit": "function"}),
    "Strategy": (Strategy, {"algorithm": ISFedAvg(step_size=0.1, num_active=2), "num_agents": 4}, {
        "algorithm": "object", "num_agents": "whole", "seed": "whole", "safety": "object?",
        "weighting": "word?", "agent_weights": "array", "buffers": "columns", "time_limit": "limit",
        "join_limit": "limit", "names": "columns", "readmit": "columns", "on_round": "function?"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_refused_by_name(name):
    call, given, kinds = CALLS[name]
    if name != "own_turn":
        call(**given)
    assert complaints(call, given, kinds) == []
