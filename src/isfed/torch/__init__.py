"""Neural networks: PyTorch modules as losses, and agents that train them."""

# pyright: reportMissingImports=false

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError("isfed.torch needs PyTorch: pip install 'isfed[torch]'") from error

from isfed.methods.fedavg import importance
from isfed.torch.diagnose import NetworkDiagnosis, diagnose
from isfed.torch.evaluation import Evaluate, evaluate, evaluate_agents
from isfed.torch.example_norms import LayerError
from isfed.torch.importance_sampler import BatchSampler, ImportanceSampler
from isfed.torch.network import Network, load_model, save_model
from isfed.torch.server_optimizers import TorchSchedule, TorchServer
from isfed.torch.trackers import Lines, MLflow, Point, TensorBoard
from isfed.torch.train import ResumeError, Training, train

__all__ = [
    "BatchSampler",
    "Evaluate",
    "ImportanceSampler",
    "LayerError",
    "Lines",
    "MLflow",
    "Network",
    "NetworkDiagnosis",
    "Point",
    "ResumeError",
    "TensorBoard",
    "TorchSchedule",
    "TorchServer",
    "Training",
    "diagnose",
    "evaluate",
    "evaluate_agents",
    "importance",
    "load_model",
    "save_model",
    "train",
]
