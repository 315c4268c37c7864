"""The mean of the models of a run, compiled: for the server `Average` and for the fused kernel.

The last half is kept as sums over blocks of rounds, (BLOCKS, M), an exponential mean as one row.
"""

from __future__ import annotations

from isfed.base.jit import jit_call

BLOCKS = 8  # how many sums of models the average of the last half is made of


@jit_call
def block_length(rounds):
    """The rounds of a block: the least power of two with which `BLOCKS` blocks hold so many."""
    length = 1
    while BLOCKS * length < rounds:
        length *= 2
    return length


@jit_call
def first_averaged(rounds):
    """How many rounds are left out of the mean of the last half of so many."""
    length = block_length(rounds)
    return rounds // (2 * length) * length


@jit_call
def add_model(sums, done, longest, model):
    """Take the model after one more round into the sums of an average."""
    size = sums.shape[1]
    if sums.shape[0] == 1:
        horizon = min(longest, 1.0 + done / 4.0)
        for j in range(size):
            sums[0, j] += (model[j] - sums[0, j]) / horizon
        return
    length = block_length(done + 1)
    if done > 0 and length > block_length(done):  # all blocks are full: two become one
        for b in range(BLOCKS):
            for j in range(size):
                whole = 2 * b < BLOCKS
                sums[b, j] = sums[2 * b, j] + sums[2 * b + 1, j] if whole else 0.0
    for j in range(size):
        sums[done // length, j] += model[j]


@jit_call
def write_mean(sums, done, out):
    """Write the mean after `done` rounds, at least one, over the first entries of `out`."""
    rows, size = sums.shape
    first, count = 0, 1
    if rows > 1:
        first, count = first_averaged(done) // block_length(done), done - first_averaged(done)
    for j in range(size):
        total = sums[first, j]
        for b in range(first + 1, rows):
            total += sums[b, j]
        out[j] = total / count if rows > 1 else total
