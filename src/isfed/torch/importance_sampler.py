"""Importance sampling for an ordinary DataLoader: one machine, one model, no federation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from isfed.base.argument_checks import check_whole, checked, shown
from isfed.base.random_streams import Stream
from isfed.sampling.designs import Deville
from isfed.sampling.policies import LARGEST_SCORE, Memory, Policy, Table
from isfed.sampling.score_table import table_of
from isfed.torch.flat_module import as_float64

FORMAT = 1


class Row(int):
    """The number of a row, with the weight of its loss."""

    weight: float


class _Draw:
    """Rows drawn at once; `used` of them came back through `update`."""

    def __init__(self, number: int, rows: np.ndarray, weights: np.ndarray) -> None:
        self.number, self.rows, self.weights, self.used = number, rows, weights, 0

    def waiting(self) -> list[Row]:
        """The rows that have not come back, for a dataset."""
        rows = [Row(row) for row in self.rows[self.used :].tolist()]
        for row, weight in zip(rows, self.weights[self.used :].tolist(), strict=True):
            row.weight = weight
        return rows

    def use(self, rows: np.ndarray) -> bool:
        """Mark rows as used, with those before them; False if they are not in this draw."""
        at, size = self.used, rows.size
        if not np.array_equal(self.rows[at : at + size], rows):  # some batches were left out
            found = np.flatnonzero(self.rows[at:] == rows[0]) if size else rows
            at += int(found[0]) if len(found) else self.rows.size
            if not size or not np.array_equal(self.rows[at : at + size], rows):
                return False
        self.used = at + size
        return True


class _Weighted(Dataset):
    """The items of a dataset, each with its row and its weight."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: Row) -> tuple[Any, int, Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[Row]) -> list[tuple[Any, int, Tensor]]:
        if not all(isinstance(row, Row) for row in rows):
            raise TypeError(
                "rows without weights: give the DataLoader the ImportanceSampler as sampler=, or "
                "an isfed.torch.BatchSampler over it as batch_sampler="
            )
        numbers = [int(row) for row in rows]
        several = getattr(self.data, "__getitems__", None)
        items = [self.data[i] for i in numbers] if several is None else several(numbers)
        weights = torch.tensor([row.weight for row in rows], dtype=torch.float32)
        return list(zip(items, numbers, weights, strict=True))


class ImportanceSampler(Sampler[int]):
    """Draws rows with probabilities that follow their scores, for a `DataLoader`.

    `DataLoader(sampler.dataset, batch_sampler=BatchSampler(sampler, 64))` gives batches
    `items, rows, weights`. Every batch has distinct rows, drawn by the scores of the moment. The
    mean of `weights * losses` is then an unbiased estimate of the mean loss of all rows, and so is
    its gradient. Call `update` once for every batch.

    As `sampler=` it draws `num_samples` distinct rows at the start of every epoch.

    Args:
        data: the dataset, whose items are `data[0]`, ..., `data[len(data) - 1]`; or how many rows.
        num_samples: rows per epoch where it is a `sampler=`; a tenth of all unless given.
        policy: what becomes of scores, and the floor under the probabilities: weights are at most
            1 / floor. `Memory()` unless given, which keeps the last score of every row.
        seed: of the draws.
        delay: how many draws pass before an update counts. A DataLoader draws num_workers *
            prefetch_factor batches ahead; with a delay of at least that many, every number of
            workers gives the same batches.

    Examples:
        >>> sampler = ImportanceSampler(1000, seed=3)
        >>> sampler.update([7], [250.0])  # all other rows count as the mean
        >>> rows, weights = sampler.draw(10)
        >>> rows.size, bool(abs(weights - 1).max() < 1e-9)
        (10, True)
    """

    @checked
    def __init__(
        self,
        data: Sized | int,
        *,
        num_samples: int | None = None,
        policy: Policy | None = None,
        seed: int = 0,
        delay: int = 0,
    ) -> None:
        self.data = data
        count = check_whole(self._length(), name="the number of rows", least=1)
        default = max(1, count // 10)
        self.num_samples = _at_most(default if num_samples is None else num_samples, count)
        self.delay = check_whole(delay, name="delay", least=0)
        policy = Memory() if policy is None else policy
        if not (policy.equal or policy.learns):
            raise ValueError(
                f"policy={policy.name} scores all rows at once, but a sampler learns from batches: "
                "use Memory(), Running() or Uniform()"
            )
        self.table = Table(count, policy, Deville())
        self.stream = Stream(seed)
        self.draws = 0  # so far
        self.at = 0  # draws of this epoch
        self.restored = False  # whether the epoch goes on where a state_dict was taken
        self.out: deque[_Draw] = deque()  # with rows that have not come back
        self.late: deque[tuple[int, np.ndarray, np.ndarray]] = deque()  # updates by draw

    def _length(self) -> Any:
        return len(self.data) if isinstance(self.data, Sized) else self.data

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        self.begin(1)
        if not self.out:
            self.draw(self.num_samples)
            order = np.argsort(self.stream.uniforms(self.num_samples), kind="stable")
            drawn = self.out[-1]
            drawn.rows, drawn.weights = drawn.rows[order], drawn.weights[order]
        yield from self.out[0].waiting()

    @property
    def dataset(self) -> Dataset:
        """For the DataLoader: items `(data[row], row, weight)`."""
        if not isinstance(self.data, Sized):
            raise ValueError(
                f"data={self.data} has no items: give the sampler the dataset instead of its length"
            )
        return _Weighted(self.data)

    @property
    def scores(self) -> np.ndarray:
        """A copy of the scores; -1 where a row has none yet."""
        return self.table.scores.copy()

    def inclusion(self, num: int) -> np.ndarray:
        """(N,) the probability of every row to be among `num` drawn now, exactly."""
        return self.table.inclusion(_at_most(num, self.table.count))

    def draw(self, num: int) -> tuple[np.ndarray, np.ndarray]:
        """`num` distinct rows and their weights 1 / (N p): num p is the inclusion probability."""
        num = _at_most(num, self.table.count)
        self._learn()
        rows, prob = self.table.draw(num, self.stream)
        self.out.append(_Draw(self.draws, rows, 1.0 / (self.table.count * prob)))
        self.draws, self.at = self.draws + 1, self.at + 1
        return rows, self.out[-1].weights

    def update(self, rows: Any, scores: Any = None) -> None:
        """Say that a batch was used, and what its rows score now.

        Args:
            rows: of the batch, as the loader delivered them; or any rows, to set their scores.
            scores: numbers >= 0, e.g. losses or norms of gradients; left out, the old ones stay.
        """
        which = np.atleast_1d(_array(rows)).astype(np.int64)
        outside = (which < 0) | (which >= self.table.count)
        if outside.any():
            raise ValueError(f"row {which[outside][0]} is outside 0..{self.table.count - 1}")
        number = next((draw.number for draw in self.out if draw.use(which)), -1)
        # Loaders keep the order: what was drawn earlier and has not come back was left out.
        while number >= 0 and self.out and self.out[0].number < number:
            self.out.popleft()
        while self.out and self.out[0].used == self.out[0].rows.size:
            self.out.popleft()
        if scores is None:
            return
        values = np.atleast_1d(_array(scores)).astype(np.float64)
        if values.shape != which.shape:
            raise ValueError(f"{which.size} rows but scores of shape {values.shape}: one per row")
        bad = ~((values >= 0.0) & (values < LARGEST_SCORE))
        if bad.any():
            raise ValueError(
                f"row {which[bad][0]} scores {values[bad][0]}: scores must be finite numbers >= 0; "
                "a loss that is not finite means a smaller step or a look at this row"
            )
        self.late.append((number if number >= 0 else -self.delay - 1, which, values))
        self._learn()

    def _learn(self) -> None:
        """Write the scores that count from the next draw on."""
        while self.late and self.late[0][0] + self.delay < self.draws:
            _, rows, scores = self.late.popleft()
            self.table.refresh(rows, scores)

    def begin(self, draws: int) -> None:
        """A new epoch of that many draws, or the one that a state_dict was taken in."""
        count = self._length()
        if count != self.table.count:
            raise ValueError(
                f"the dataset has {count} rows now and had {self.table.count} when the sampler was "
                "made, so that scores belong to other rows: make a new sampler"
            )
        if not self.restored or (self.at >= draws and not self.out):
            self.out.clear()  # of an epoch that was left before its end
            self.at = 0
        self.restored = False

    def state_dict(self) -> dict[str, Any]:
        """All that decides the draws to come, batches that were not used yet among it."""
        out = [(d.number, d.rows[d.used :], d.weights[d.used :]) for d in self.out]
        return {
            "format": FORMAT,
            "rows": self.table.count,
            "scores": torch.from_numpy(self.scores),
            "stream": [int(word) for word in self.stream.state],
            "draws": self.draws,
            "at": self.at,
            "out": _tensors(out),
            "late": _tensors(self.late),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a `state_dict` was taken, bit for bit.

        Args:
            state: what `state_dict` returned, of a dataset with as many rows.
        """
        if state.get("format") != FORMAT:
            raise ValueError(
                f"a state of format {state.get('format')}, expected {FORMAT}: it is not of an "
                "ImportanceSampler, or of a later version"
            )
        if state["rows"] != self.table.count:
            raise ValueError(
                f"the state is of a dataset with {state['rows']} rows, this one has "
                f"{self.table.count}: give the dataset of the run to continue, or begin anew"
            )
        self.table.nodes = table_of(state["scores"].numpy())
        self.stream.state[:] = state["stream"]
        self.draws, self.at, self.restored = state["draws"], state["at"], True
        self.out = deque(_Draw(*draw) for draw in _arrays(state["out"]))
        self.late = deque(_arrays(state["late"]))


class BatchSampler(Sampler[list[int]]):
    """Batches of distinct rows by importance, the `batch_sampler=` of a `DataLoader`.

    Args:
        sampler: whose scores decide, and which is updated.
        batch_size: rows in every batch.
        num_batches: in an epoch; as many as a pass over the rows would have, unless given.

    Examples:
        >>> batches = BatchSampler(ImportanceSampler(100), 8)
        >>> len(batches), [len(batch) for batch in batches] == [8] * 12
        (12, True)
    """

    @checked
    def __init__(
        self, sampler: ImportanceSampler, batch_size: int, *, num_batches: int | None = None
    ) -> None:
        count = sampler.table.count
        self.sampler, self.batch_size = sampler, _at_most(batch_size, count, name="batch_size")
        usual = count // self.batch_size if num_batches is None else num_batches
        self.num_batches = check_whole(usual, name="num_batches", least=1)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        self.sampler.begin(self.num_batches)
        for draw in list(self.sampler.out):  # what a state_dict had under way
            yield list[int](draw.waiting())
        while self.sampler.at < self.num_batches:
            self.sampler.draw(self.batch_size)
            yield list[int](self.sampler.out[-1].waiting())


def _at_most(num: int, count: int, *, name: str = "num_samples") -> int:
    check_whole(num, name=name, least=1)
    if num > count:
        raise ValueError(f"{name}={shown(num)} exceeds the {count} rows: they are drawn once each")
    return num


def _array(values: Any) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    return as_float64(values) if values.is_floating_point() else values.cpu().numpy()


def _tensors(parts: Any) -> list[tuple[int, Tensor, Tensor]]:
    """As `torch.load(weights_only=True)` reads them."""
    return [(i, torch.tensor(rows), torch.tensor(values)) for i, rows, values in parts]


def _arrays(parts: Any) -> list[tuple[int, np.ndarray, np.ndarray]]:
    return [(i, rows.numpy().copy(), values.numpy().copy()) for i, rows, values in parts]
