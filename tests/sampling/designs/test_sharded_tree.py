"""The sharded tree: the draws of one tree, bit for bit, whatever the shards."""

import importlib.util
import logging
import os

import numpy as np
import pytest

from isfed.base.random_streams import Stream
from isfed.sampling.designs import Deville, ShardedTree, SumTree, Systematic
from isfed.sampling.designs.sharded_tree import _top_of
from isfed.sampling.designs.tree_shard import Shard, ask_here, on_ray

DESIGNS = [Systematic(), Deville()]


def stream(seed):
    return Stream.at(np.uint64(seed), round_index=3, agent=5)


def same(one, other, num, design, seed):
    for (units, prob), (more, others) in zip(one, other, strict=True):
        assert np.array_equal(units, more), (num, design, seed)
        assert np.array_equal(prob.view(np.uint64), others.view(np.uint64))


def weights_of(kind, count, rng):
    if kind == "even":
        return rng.uniform(0.5, 1.5, count)
    if kind == "wild":  # many orders of magnitude, so that some are certain; a fifth is zero
        return rng.lognormal(0.0, 8.0, count) * (rng.random(count) < 0.8)
    if kind == "tiny":
        return 1e-300 * rng.uniform(0.5, 1.5, count)
    return np.where(rng.random(count) < 0.01, 1.0, 1e-18)  # sums that round away most of it


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", ["even", "wild", "tiny", "rounded"])
@pytest.mark.parametrize(("count", "block"), [(1025, 16), (5000, 256), (20000, 256), (70000, 4096)])
def test_equal_to_one_tree_draw_for_draw(count, block, kind, design):
    rng = np.random.default_rng(count)
    weights = weights_of(kind, count, rng)
    single = SumTree(weights)
    trees = [ShardedTree(weights, shards=shards, block=block) for shards in (1, 4, 16)]
    positive = int(np.count_nonzero(weights))
    for seed, num in enumerate((1, 2, 7, 60, min(500, positive), positive - 1)):
        expected = [single.draw(num, stream(seed), design=design)]
        for tree in trees:
            same([tree.draw(num, stream(seed), design=design)], expected, num, design, seed)
    if kind != "even":
        return
    for step in range(20):  # updates keep them equal too
        units = rng.integers(0, count, 30)
        fresh = rng.lognormal(0.0, 3.0, 30)
        for tree in (single, *trees):
            tree.update(units, fresh)
        expected = [single.draw(40, stream(step), design=design)]
        for tree in trees:
            assert tree.total == single.total
            same([tree.draw(40, stream(step), design=design)], expected, 40, design, step)


def test_a_hundred_thousand_draws_are_equal():
    """In draws of 500 from 20 000 units, with one stream that all go through."""
    weights = np.random.default_rng(7).lognormal(0.0, 1.0, 20000)
    single, sharded = SumTree(weights), ShardedTree(weights, shards=4, block=256)
    one, other = stream(1), stream(1)
    for _ in range(200):
        first, second = single.draw(500, one), sharded.draw(500, other)
        assert np.array_equal(first[0], second[0])
        assert np.array_equal(first[1], second[1])
    assert np.array_equal(one.state, other.state)


def test_a_small_tree_is_one_tree():
    weights = np.arange(1.0, 200.0)
    tree, single = ShardedTree(weights, shards=4), SumTree(weights)
    assert tree.num_shards == 1
    assert tree.total == single.total
    assert len(tree) == 199
    same([tree.draw(5, stream(0))], [single.draw(5, stream(0))], 5, None, 0)
    tree.update([3], [50.0])
    assert tree.total == single.total + 46.0


def test_each_shard_is_asked_once_for_borders_and_once_for_places():
    weights = np.random.default_rng(0).uniform(0.5, 1.5, 20000)
    asked = []

    def ask(calls):
        asked.append([name for _, name, _ in calls])
        return ask_here(calls)

    tree = ShardedTree(weights, shards=4, block=256, ask=ask)
    asked.clear()
    tree.draw(100, stream(0))
    assert asked == [["find"] * 4, ["find"] * 4]


def test_certain_units_are_put_back():
    weights = np.ones(5000)
    weights[[7, 4000]] = 1e9
    tree = ShardedTree(weights, shards=3, block=256)
    before = tree._top.copy()
    units, prob = tree.draw(4, stream(0))
    assert {7, 4000} <= set(units.tolist())
    assert np.array_equal(np.sort(prob)[-2:], [1.0, 1.0])
    assert np.array_equal(tree._top.view(np.uint64), before.view(np.uint64))
    leaves = np.concatenate([shard.leaves() for shard in tree._shards])
    assert np.array_equal(leaves, weights)


def test_a_shard_knows_its_leaves():
    weights = np.arange(1.0, 1000.0)
    shard = Shard(weights, 256)
    assert np.array_equal(shard.leaves(), weights)
    assert _top_of(shard.roots())[-1, 0] == weights.sum()


@pytest.mark.skipif(
    not os.environ.get("ISFED_TEST_RAY") or importlib.util.find_spec("ray") is None,
    reason="a Ray cluster takes its time: make test-ray",
)
def test_actors_of_ray_give_the_same_draws():
    import ray  # pyright: ignore[reportMissingImports]

    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
    try:
        weights = np.random.default_rng(0).lognormal(0.0, 1.0, 20000)
        tree, single = ShardedTree(weights, shards=2, block=256, **on_ray()), SumTree(weights)
        for one in (tree, single):
            one.update([1, 15000], [5.0, 1e6])  # the second is certain
        for seed in range(10):
            expected = single.draw(50, stream(seed))
            same([tree.draw(50, stream(seed))], [expected], 50, None, seed)
    finally:
        ray.shutdown()


def test_what_cannot_be_is_said():
    weights = np.ones(3000)
    tree = ShardedTree(weights, shards=2, block=256)
    for call, words in (
        (lambda: ShardedTree(weights, shards=0), "shards=0"),
        (lambda: ShardedTree(weights, block=1000), "block=1000 must be a power of 16"),
        (lambda: tree.draw(3001, stream(0)), "num=3001"),
        (lambda: tree.update([3000], [1.0]), "outside 0..2999"),
        (lambda: tree.update([1, 2], [1.0]), "2 units but 1 weights"),
        (lambda: tree.update([0.5], [1.0]), "must be integers"),
        (lambda: tree.update([1, 2], [1.5e308, 1.5e308]), "overflows"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert tree.total == 3000.0
    tree.update(np.arange(10), np.zeros(10))
    with pytest.raises(ValueError, match="exceeds the 2990 units of positive weight"):
        tree.draw(2995, stream(0))
