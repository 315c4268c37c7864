"""Neural networks: PyTorch modules as losses, and agents that train them."""

# pyright: reportMissingImports=false

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("isfed.torch needs PyTorch: pip install 'isfed[torch]'") from error

from isfed.torch.evaluate import Evaluate, evaluate, evaluate_agents
from isfed.torch.files import load_model, save_model
from isfed.torch.network import Network
from isfed.torch.watch import LayerError

__all__ = [
    "Evaluate",
    "LayerError",
    "Network",
    "evaluate",
    "evaluate_agents",
    "load_model",
    "save_model",
]
