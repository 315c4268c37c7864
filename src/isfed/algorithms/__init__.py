"""Algorithms as frozen records of choices; one engine runs them all."""

from isfed.algorithms.fedavg import DynamicFedAvg, FedAvg
from isfed.algorithms.isfedavg import ISFedAvg

__all__ = ["DynamicFedAvg", "FedAvg", "ISFedAvg"]
