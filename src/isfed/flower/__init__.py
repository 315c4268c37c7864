"""The same agents and cloud over a network, on Flower; needs the extra `flower`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isfed.federation.response_rates import Absences as Absences
    from isfed.federation.safety import Privacy as Privacy
    from isfed.federation.safety import Safety as Safety
    from isfed.federation.safety import ScoreRange as ScoreRange
    from isfed.flower.agent_handler import agent_turn as agent_turn
    from isfed.flower.agent_handler import own_turn as own_turn
    from isfed.flower.agent_handler import tell_agent as tell_agent
    from isfed.flower.agent_handler import tell_examples as tell_examples
    from isfed.flower.node_directory import find_nodes as find_nodes
    from isfed.flower.strategy import Strategy as Strategy
    from isfed.flower.torch_handler import torch_turn as torch_turn

_HOMES = {
    "Absences": "federation.response_rates",
    "Privacy": "federation.safety",
    "Safety": "federation.safety",
    "ScoreRange": "federation.safety",
    "Strategy": "flower.strategy",
    "agent_turn": "flower.agent_handler",
    "find_nodes": "flower.node_directory",
    "own_turn": "flower.agent_handler",
    "tell_agent": "flower.agent_handler",
    "tell_examples": "flower.agent_handler",
    "torch_turn": "flower.torch_handler",
}


def require_flwr() -> None:
    """Raise an ImportError that says what to install, if Flower is not there."""
    if importlib.util.find_spec("flwr") is None:
        raise ImportError("Flower is not installed: pip install 'isfed[flower]'")


def __getattr__(name: str) -> Any:
    # On demand: an agent's process starts for every message and needs no strategy, and the
    # command line can show its help without Flower.
    if name == "__all__":
        return list(_HOMES)
    if name not in _HOMES:
        raise AttributeError(f"module 'isfed.flower' has no attribute {name!r}")
    if _HOMES[name].startswith("flower."):
        require_flwr()
    return getattr(importlib.import_module(f"isfed.{_HOMES[name]}"), name)
