"""A leaderboard that takes seconds: two problems, four methods and a few combinations."""

from __future__ import annotations

from typing import Any

SOURCE = {"preset": "outliers", "num_agents": 20, "num_examples": 12, "batch_size": [1, 4]}
TINY: dict[str, Any] = {
    "name": "tiny", "version": 1, "rounds": 40, "repetitions": 3, "seed": 7, "trials": 3,
    "tuning_rounds": 30, "tuning_repetitions": 1, "tuning_seed": 8, "looks": 8, "decades": 4,
    "reference": "FedAvg with 1/E_k",
    "problem": [
        {"name": "outliers", "num_active": 3, "source": SOURCE},
        {"name": "paper", "num_active": 3, "tuned": False, "source": {**SOURCE, "preset": "paper"}},
    ],
    "method": [
        {"kind": "ISFedAvg"},
        {"kind": "FedAvg", "name": "FedAvg with 1/E_k", "divide_by_steps": True},
        {"kind": "PowerOfChoice"},
        {"kind": "HiCSFL"},
    ],
    "factorial": {
        "sampler": ["uniform", "shuffled passes"],
        "estimator": ["Horvitz-Thompson", "control variates"],
        "server": ["plain", "average"], "trials": 2, "repetitions": 3,
    },
}  # fmt: skip
