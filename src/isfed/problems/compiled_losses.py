"""The compiled side of the losses: gradients and norms of a batch, and the risks of agents.

The gradient of one example is `slope x + 2 ridge params`, with one slope for each row of the
parameters: one row, but for softmax. Its norm has a closed form, so the matrix of per-example
gradients is never built.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from isfed.base.jit import compiled, jit_call, jit_inline
from isfed.base.portable_arithmetic import dot, square

# The losses that compiled code knows, by number.
LEAST_SQUARES, LOGISTIC, HUBER, SOFTMAX = 0, 1, 2, 3


class CompiledLoss(NamedTuple):
    """A loss as compiled code takes it: the same type for all, so the kernel compiles once."""

    kind: int
    ridge: float
    knee: float  # where Huber's loss becomes linear; the others ignore it
    num_rows: int  # of the parameters as a matrix: the number of classes for softmax, else 1


@jit_inline
def _square_of(features, squares, row, size):
    """The squared length of one row, from the stored ones where they are stored."""
    return squares[row] if squares.size > 0 else square(features, row, size)


@jit_inline
def _slope(loss, margin, target):
    """The derivative of an example's loss in its margin x . params."""
    if loss.kind == LEAST_SQUARES:
        return -2.0 * (target - margin)
    if loss.kind == HUBER:
        return -2.0 * min(max(target - margin, -loss.knee), loss.knee)
    return -target / (1.0 + math.exp(target * margin))  # logistic


@jit_inline
def moved_target(features, targets, row, shift):
    """The target of one example when the true model has moved by `shift` (empty: it has not)."""
    target = targets[row]
    for j in range(shift.size):
        target += features[row, j] * shift[j]
    return target


@jit_call
def _softmax_gradient(loss, params, examples, first, units, weight, num, scored, out):
    """`batch_gradient` for the softmax loss; `params` is (classes x features), row after row."""
    features, targets, _, squares = examples
    gradient, norms, slopes = out
    size = features.shape[1]
    pull = 2.0 * loss.ridge
    length = 0.0
    for j in range(params.size):
        gradient[j] = 0.0
        length += params[j] * params[j]
    total = 0.0
    for i in range(num):
        row = np.uint64(first + units[i])  # unsigned: see `designs.table`
        label = int(targets[row])
        largest = -math.inf
        for c in range(loss.num_rows):
            slopes[c] = dot(features, row, params[c * size :], size)
            largest = max(largest, slopes[c])
        # Margins are taken from the largest one: exp cannot overflow, the sum is at least 1.
        mass = 0.0
        for c in range(loss.num_rows):
            mass += math.exp(slopes[c] - largest)
        square, cross_term = 0.0, 0.0
        for c in range(loss.num_rows):
            margin = slopes[c]
            slope = math.exp(margin - largest) / mass - (1.0 if c == label else 0.0)
            square += slope * slope
            cross_term += slope * margin
            factor = weight[i] * slope
            at = c * size
            for j in range(size):
                gradient[at + j] += factor * features[row, j]
        total += weight[i]
        if scored:  # |slopes x^T + pull params|^2
            square = square * _square_of(features, squares, row, size)
            square += pull * (2.0 * cross_term + pull * length)
            norms[i] = math.sqrt(max(square, 0.0))
    for j in range(params.size):
        gradient[j] = (gradient[j] + total * pull * params[j]) / num


@jit_inline
def _pair_gradient(loss, params, examples, first, units, weight, num, scored, out):
    """`batch_gradient` for two features, as in the paper's regression: all stays in registers."""
    features, targets, shift, _ = examples
    gradient, norms, _ = out
    pull = 2.0 * loss.ridge
    p0, p1 = params[0], params[1]
    length = p0 * p0 + p1 * p1
    g0, g1, total = 0.0, 0.0, 0.0
    for i in range(num):
        row = np.uint64(first + units[i])
        x0, x1 = features[row, 0], features[row, 1]
        margin = x0 * p0 + x1 * p1
        slope = _slope(loss, margin, moved_target(features, targets, row, shift))
        factor = weight[i] * slope
        g0 += factor * x0
        g1 += factor * x1
        total += weight[i]
        if scored:
            square = slope * slope * (x0 * x0 + x1 * x1)
            square += pull * (2.0 * slope * margin + pull * length)
            norms[i] = math.sqrt(square if square > 0.0 else 0.0)
    gradient[0] = (g0 + total * pull * p0) / num
    gradient[1] = (g1 + total * pull * p1) / num


@jit_inline
def batch_gradient(loss, params, examples, first, units, weight, num, scored, out):
    """Weighted mean gradient of the examples `first + units[:num]`, into out.

    `examples` is (features, targets, shift, squared lengths of the rows or none), `out` is
    (gradient, norms, room for one number per row of the parameters). The norms are left alone
    unless `scored`.
    """
    if loss.kind == SOFTMAX:
        _softmax_gradient(loss, params, examples, first, units, weight, num, scored, out)
        return
    if params.size == 2:
        _pair_gradient(loss, params, examples, first, units, weight, num, scored, out)
        return
    features, targets, shift, squares = examples
    gradient, norms, _ = out
    size = params.size
    pull = 2.0 * loss.ridge
    length = 0.0
    for j in range(size):
        gradient[j] = 0.0
        length += params[j] * params[j]
    total = 0.0
    for i in range(num):
        row = np.uint64(first + units[i])  # unsigned: see `designs.table`
        margin = dot(features, row, params, size)
        slope = _slope(loss, margin, moved_target(features, targets, row, shift))
        factor = weight[i] * slope
        for j in range(size):
            gradient[j] += factor * features[row, j]
        total += weight[i]
        if scored:  # |slope x + pull params|^2
            square = slope * slope * _square_of(features, squares, row, size)
            square += pull * (2.0 * slope * margin + pull * length)
            norms[i] = math.sqrt(max(square, 0.0))
    for j in range(size):
        gradient[j] = (gradient[j] + total * pull * params[j]) / num


@compiled
def gradient_of(loss, params, features, targets, weight):
    """The weighted mean gradient of a batch, and the norm of every example's gradient."""
    num = targets.size
    out = (np.empty(params.size), np.empty(num), np.empty(loss.num_rows))
    examples = (features, targets, np.empty(0), np.empty(0))
    batch_gradient(loss, params, examples, 0, np.arange(num), weight, num, True, out)
    return out[0], out[1]


@jit_inline
def _value(loss, margin, target):
    """The loss of an example from its margin x . params, without the ridge."""
    if loss.kind == LEAST_SQUARES:
        return (target - margin) * (target - margin)
    if loss.kind == HUBER:
        residual = abs(target - margin)
        small = residual <= loss.knee
        return residual * residual if small else loss.knee * (2.0 * residual - loss.knee)
    exponent = -target * margin  # logistic, so that exp cannot overflow
    return max(exponent, 0.0) + math.log1p(math.exp(-abs(exponent)))


@jit_inline
def _softmax_value(loss, params, features, row, label):
    size = features.shape[1]
    largest = -math.inf
    for c in range(loss.num_rows):
        largest = max(largest, dot(features, row, params[c * size :], size))
    mass, own = 0.0, 0.0
    for c in range(loss.num_rows):
        margin = dot(features, row, params[c * size :], size)
        mass += math.exp(margin - largest)
        own = margin if c == label else own
    return largest + math.log(mass) - own


@compiled
def risks(loss, features, targets, offsets, which, models, out):
    """The mean loss of each of these agents, at one model for all or at one for each."""
    size = features.shape[1]
    for i in range(which.size):
        params = models[i if models.shape[0] > 1 else 0]
        first, last = offsets[which[i]], offsets[which[i] + 1]
        total = 0.0
        for r in range(first, last):
            row = np.uint64(r)
            if loss.kind == SOFTMAX:
                total += _softmax_value(loss, params, features, row, int(targets[row]))
            else:
                total += _value(loss, dot(features, row, params, size), targets[row])
        length = 0.0
        for j in range(params.size):
            length += params[j] * params[j]
        out[i] = total / (last - first) + loss.ridge * length
