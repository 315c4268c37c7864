"""The model and the data: a ridge regression with NumPy."""

import numpy as np


def load(context):
    """This agent's examples; a real app reads them from the agent's own disk."""
    agent = int(context.node_config["partition-id"])
    rng = np.random.default_rng(agent)
    features = rng.standard_normal((100, 4))
    noise = 10.0**agent / 100 * rng.standard_normal(100)  # the agents differ a hundredfold
    return features, features @ np.arange(1.0, 5.0) + noise


def fit(params, features, targets, steps=5, batch=10, step_size=0.01, ridge=0.001):
    """A few steps of stochastic gradient descent."""
    for _ in range(steps):
        rows = np.random.default_rng().choice(len(targets), batch, replace=False)
        residual = targets[rows] - features[rows] @ params
        gradient = -2 * features[rows].T @ residual / batch + 2 * ridge * params
        params = params - step_size * gradient
    return params


def loss(params, features, targets):
    """The mean squared error."""
    return float(np.mean((targets - features @ params) ** 2))
