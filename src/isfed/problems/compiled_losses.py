"""The compiled side of the losses' values: the risk of one agent after the other."""

from __future__ import annotations

import math

import numpy as np

from isfed.base.jit import compiled, inlined
from isfed.base.portable_arithmetic import dot
from isfed.problems.compiled_gradients import HUBER, LEAST_SQUARES, SOFTMAX


@inlined
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


@inlined
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
