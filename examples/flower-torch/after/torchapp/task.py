"""The model, the data, and an ordinary PyTorch training loop."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """A small convolutional network with batch norm, whose counters are whole numbers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.out(x.flatten(1))


def load(agent):
    """The images of one agent, more or fewer of them; agent -1 has test images."""
    images, digits = load_digits(return_X_y=True)
    images = torch.tensor(images.reshape(-1, 1, 8, 8) / 16.0, dtype=torch.float32)
    digits = torch.tensor(digits)
    if agent < 0:
        return images[1500:], digits[1500:]
    rows = np.split(np.random.default_rng(0).permutation(1500), [1000, 1350])[agent]
    return images[rows], digits[rows]


def fit(model, x, y, lr, steps=20, batch=32):
    """Momentum SGD; returns the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    total = 0.0
    for _ in range(steps):
        rows = torch.randint(len(y), (batch,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def test(model, x, y):
    """The mean loss and the accuracy."""
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    loss = nn.functional.cross_entropy(outputs, y).item()
    return loss, (outputs.argmax(1) == y).float().mean().item()
