"""A small transformer whose body is frozen, with low-rank adapters; and every agent's text."""

import torch
from torch import nn

VOCABULARY, LENGTH, WIDTH, RANK = 32, 12, 32, 4


class LowRank(nn.Module):
    """A frozen linear layer plus a product of two thin matrices, which are trained (LoRA)."""

    def __init__(self, body):
        super().__init__()
        self.body = body.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(RANK, body.in_features) / body.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(body.out_features, RANK))

    def forward(self, x):
        return self.body(x) + x @ self.lora_a.T @ self.lora_b.T


class Net(nn.Module):
    """One block of attention: says which token stands two places before the last."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH).requires_grad_(False)
        self.place = nn.Embedding(LENGTH, WIDTH).requires_grad_(False)
        self.query, self.key, self.value, self.out = (
            LowRank(nn.Linear(WIDTH, WIDTH)) for _ in range(4)
        )
        self.head = LowRank(nn.Linear(WIDTH, VOCABULARY))

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(LENGTH))
        x = x + self.out(
            nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        )
        return self.head(torch.relu(x[:, -1]))


def make_model(adapters=None):
    """The same body on every host; in practice, weights that were downloaded once."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net()
    if adapters is not None:
        model.load_state_dict(adapters, strict=False)
    return model


def adapters_of(model):
    """What is trained, and all that travels: a sixth of the numbers of this small model."""
    return {name: value for name, value in model.state_dict().items() if "lora_" in name}


def load(agent):
    """Sentences with words that this agent likes; the target is the third word from the end."""
    draw = torch.Generator().manual_seed(100 + agent)
    favourites = torch.rand(VOCABULARY, generator=draw) ** 4 + 1e-3
    tokens = favourites.multinomial(200 * LENGTH, replacement=True, generator=draw)
    tokens = tokens.view(200, LENGTH)
    return tokens, tokens[:, -3]


def fit(model, tokens, targets, lr, steps=30, batch=32):
    """Adam on the adapters; returns the mean loss."""
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer, total = torch.optim.Adam(trained, lr=lr), 0.0
    for _ in range(steps):
        rows = torch.randint(len(targets), (batch,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps
