"""The risk of a generalised linear loss in coordinates in which its curvature is at most 1."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from isfed.base.gram_matrix import one_thread, weighted_gram
from isfed.base.progress import say
from isfed.problems.losses import LinearLoss, Logistic, Softmax

WORK, PRODUCTS = 5e9, (300, 20_000)  # the most that is spent on products with the Hessian
SAMPLE = 10_000  # rows: of more, a sample gives the start and the preconditioner
SEEN = 1e-14  # of the largest curvature: in directions below it nothing varies
SEEN_BY_QR = 1e-13  # the same of its root, which QR finds to as many digits
CHUNK = 20_000  # rows


class NoOptimumError(ValueError):
    """A risk has no minimiser, or none was found; the message says why and what to do."""


class Exhausted(Exception):  # noqa: N818 (it is caught at once, and is no error of the user's)
    """A product with the Hessian that overflows, or is one more than is allowed."""


def solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution, or the smallest least-squares one if the matrix is singular."""
    solution = linalg.lstsq(matrix, right)
    assert solution is not None
    return solution[0]


def moments(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """R = sum_n weight_n x_n x_n^T."""
    with np.errstate(over="ignore", invalid="ignore"):
        second = weighted_gram(x, weight)
    if not np.isfinite(second).all():
        raise NoOptimumError(
            "no minimiser was found: the features are too large to be squared; standardise them"
        )
    return second


def scales(second: np.ndarray) -> np.ndarray:
    """One over the length of every feature, from the moments; 0 for one that is always 0."""
    lengths = np.sqrt(np.maximum(np.diag(second), 0.0))
    return np.divide(1.0, lengths, out=np.zeros(len(second)), where=lengths > 0.0)


def triangle(
    x: np.ndarray, weight: np.ndarray, below: np.ndarray, *, scale, bend: float = 1.0, beside=None
) -> np.ndarray:
    """T with T^T T = the moments of bend^1/2 x scale, by QR: it has digits where they have none.

    `beside` is one more column, which is not scaled; `below` are further rows, of weight 1.
    """
    root = below
    with one_thread(x):
        for first in range(0, len(x), CHUNK):
            rows = slice(first, first + CHUNK)
            part = np.sqrt(bend) * x[rows] * scale
            if beside is not None:
                part = np.column_stack([part, beside[rows]])
            part = np.sqrt(weight[rows])[:, None] * part
            root = np.asarray(np.linalg.qr(np.concatenate([root, part]), mode="r"))
    return root


def _whitening(x, weight, bend: float, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """`unwhiten`, from coordinates in which bend R + 2 ridge I is the identity, and `whiten`.

    Both are (M, directions).
    """
    second = moments(x, weight)
    spectrum, vectors = linalg.eigh(second)
    bound = bend * spectrum + 2.0 * ridge
    seen = bound > SEEN * bound.max()
    scale = scales(bend * second + 2.0 * ridge * np.eye(len(second)))
    if seen.sum() < np.count_nonzero(scale):
        # A direction may be below the cut because nothing varies along it, or because another
        # feature is millions of times as large: a scale for every feature, and QR, can tell.
        below = np.sqrt(2.0 * ridge) * np.diag(scale)
        root = triangle(x, weight, below, scale=scale, bend=bend)
        _, lengths, turned = linalg.svd(root, full_matrices=False)
        kept = lengths > SEEN_BY_QR * lengths.max()
        if kept.sum() > seen.sum():
            turned, lengths = turned[kept].T, lengths[kept]
            unscale = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0.0)
            return scale[:, None] * turned / lengths, unscale[:, None] * turned * lengths
    root = np.sqrt(bound[seen])
    return vectors[:, seen] / root, vectors[:, seen] * root


class Risk:
    """The risk of a generalised linear loss as a function of whitened parameters.

    The Hessian is at most bend R + 2 ridge I for each row of the parameters. In the coordinates
    `params = place @ unwhiten.T` that bound is the identity, so conjugate gradients need few steps
    whatever the scale of the features. Directions in which nothing varies are left at zero.
    """

    def __init__(self, loss: LinearLoss, x, y, weight) -> None:
        self.loss, self.x, self.y, self.weight = loss, x, y, weight[:, None]
        self.unwhiten, self.whiten = _whitening(x, weight, loss.bend, loss.ridge)
        self.shape = (loss.compiled.num_rows, self.unwhiten.shape[1])
        self.products_left = int(np.clip(WORK / (x.size * self.shape[0]), *PRODUCTS))
        self._key, self._margins = b"", np.empty(0)

    def zero(self) -> np.ndarray:
        """The place of parameters that are all zero."""
        return np.zeros(self.shape[0] * self.shape[1])

    def least_squares(self) -> np.ndarray:
        """The place of the least squares fit to the targets: near the minimum of a robust loss."""
        if self.shape[0] > 1:
            return self.zero()
        seen = self.x @ self.unwhiten
        root = np.sqrt(self.weight)
        return solve(root * seen, root[:, 0] * self.y)

    def params(self, place: np.ndarray) -> np.ndarray:
        """(rows, M)."""
        return place.reshape(self.shape) @ self.unwhiten.T

    def margins(self, place: np.ndarray) -> np.ndarray:
        """(N, rows); kept, because a solver asks for many products at one place."""
        key = place.tobytes()
        if key != self._key:
            say("finding the optimum w^o")
            self._key, self._margins = key, self.x @ self.params(place).T
        return self._margins

    def sample(self) -> Risk:
        """The same on some of the rows; every so many, because neighbours are of one agent."""
        rows = slice(None, None, -(-len(self.x) // SAMPLE))
        weight = self.weight[rows, 0] / self.weight[rows].sum()
        return Risk(self.loss, np.ascontiguousarray(self.x[rows]), self.y[rows], weight)

    def value(self, place: np.ndarray) -> float:
        """The risk."""
        losses = self.loss.of_margins(self.margins(place), self.y)
        return self.weight[:, 0] @ losses + self.loss.ridge * np.sum(self.params(place) ** 2)

    def raw_gradient(self, place: np.ndarray) -> np.ndarray:
        """The gradient in the parameters, (rows, M)."""
        slopes = self.weight * self.loss.slopes(self.margins(place), self.y)
        return slopes.T @ self.x + 2.0 * self.loss.ridge * self.params(place)

    def gradient(self, place: np.ndarray) -> np.ndarray:
        """The gradient in whitened coordinates."""
        return (self.raw_gradient(place) @ self.unwhiten).ravel()

    def product(self, place: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The Hessian times a direction; `Exhausted` if that was once too often or overflows."""
        self.products_left -= 1
        if self.products_left < 0:
            raise Exhausted
        say("finding the optimum w^o")
        change = self.params(direction)
        bends = self.loss.bends(self.margins(place), self.y, self.x @ change.T)
        raw = (self.weight * bends).T @ self.x + 2.0 * self.loss.ridge * change
        product = (raw @ self.unwhiten).ravel()
        if not np.isfinite(product).all():
            raise Exhausted
        return product

    def centred(self, place: np.ndarray) -> np.ndarray:
        """The place less the change that all classes share, which changes no probability.

        The minimiser has no such part, and along it the Hessian is almost singular.
        """
        if self.shape[0] == 1:
            return place
        parts = place.reshape(self.shape)
        return (parts - parts.mean(axis=0)).ravel()

    def blocks(self, place: np.ndarray) -> list[np.ndarray]:
        """The Hessian's diagonal blocks, one for each row of the parameters, of a sample."""
        rows = slice(None, None, max(1, len(self.x) // (2 * SAMPLE)))
        seen = self.x[rows] @ self.unwhiten
        share = self.weight[rows] / self.weight[rows].sum()
        ridge = 2.0 * self.loss.ridge * self.unwhiten.T @ self.unwhiten
        blocks = []
        for unit in np.eye(self.shape[0]):
            say("finding the optimum w^o")
            change = np.broadcast_to(unit, (len(seen), self.shape[0]))
            bends = self.loss.bends(self.margins(place)[rows], self.y[rows], change) @ unit
            blocks.append((seen * (share[:, 0] * bends)[:, None]).T @ seen + ridge)
        return blocks

    def separates(self, place: np.ndarray) -> bool:
        """Whether every example is on its side: then larger parameters are always better."""
        margins = self.margins(place)
        if isinstance(self.loss, Logistic):
            lead = self.y * margins[:, 0]
        elif isinstance(self.loss, Softmax):
            own = np.arange(self.shape[0]) == self.y[:, None]
            lead = margins[own] - np.where(own, -np.inf, margins).max(axis=1)
        else:
            return False
        return bool(self.loss.ridge == 0.0 and lead.min() >= 0.0 and lead.max() > 0.0)
