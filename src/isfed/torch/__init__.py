"""Neural networks: PyTorch modules as losses, and agents that train them."""

# pyright: reportMissingImports=false

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("isfed.torch needs PyTorch: pip install 'isfed[torch]'") from error

from isfed.torch.network import Network
from isfed.torch.watch import LayerError

__all__ = ["LayerError", "Network"]
