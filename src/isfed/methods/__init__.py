"""Algorithms as frozen records of choices; one engine runs them all."""

from isfed.methods.fedavg import DynamicFedAvg, FedAvg
from isfed.methods.isfedavg import ISFedAvg

__all__ = ["DynamicFedAvg", "FedAvg", "ISFedAvg"]
