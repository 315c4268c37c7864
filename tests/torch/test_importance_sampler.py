"""The samplers for a DataLoader: what is drawn, with which weights, and again after a resume."""

import io
from itertools import islice

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from isfed import Running, Uniform
from isfed.sampling.policies import Current
from isfed.torch import BatchSampler, ImportanceSampler


class Rows(TensorDataset):
    """Rows that know their number; its workers need no module of this test."""


def rows(count):
    return Rows(torch.arange(count, dtype=torch.float32))


def skewed(count, num, **options):
    sampler = ImportanceSampler(count, **options)
    sampler.update(np.arange(count), np.random.default_rng(0).lognormal(0.0, 1.0, count))
    return sampler, sampler.inclusion(num)


def train(sampler, *, batches=12, size=8, workers=0, stop=None):
    """Batches with updates that depend on what was drawn; ends after `stop` of them."""
    loader = DataLoader(
        sampler.dataset, batch_sampler=BatchSampler(sampler, size, num_batches=batches),
        num_workers=workers, multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    seen = []
    for (x,), which, weights in loader:
        assert torch.equal(x.long(), which)
        seen.append((which.numpy(), weights.numpy()))
        sampler.update(which, (x - len(seen)).abs() * weights)
        if len(seen) == stop:
            break
    return seen


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])


@pytest.mark.parametrize("num", [4, 12])
def test_inclusion_is_honoured(num):
    """Counts of 4 000 draws: one z-score per row; their squares add up to about a chi-square."""
    sampler, wanted = skewed(20, num)
    draws = [sampler.draw(num)[0] for _ in range(4000)]
    assert all(np.unique(units).size == num for units in draws)
    share = np.bincount(np.concatenate(draws), minlength=20) / 4000
    certain = wanted > 1 - 1e-12
    np.testing.assert_array_equal(share[certain], 1.0)
    z = (share - wanted)[~certain] / np.sqrt((wanted * (1 - wanted))[~certain] / 4000)
    # The sum is fixed, which takes one degree; rows are negatively correlated, so this is careful.
    assert stats.chi2.sf(np.sum(z**2), z.size) > 1e-4
    assert abs(z).max() < 4.5


def test_weighted_random_sampler_does_not_honour_it():
    """What the check above says of PyTorch's own sampler without replacement."""
    _, wanted = skewed(20, 4)
    sampler = WeightedRandomSampler(
        wanted.tolist(), 4, replacement=False, generator=torch.Generator().manual_seed(0)
    )
    share = np.bincount(np.concatenate([list(sampler) for _ in range(4000)]), minlength=20) / 4000
    uncertain = wanted < 1 - 1e-12
    z = (share - wanted)[uncertain] / np.sqrt((wanted * (1 - wanted))[uncertain] / 4000)
    assert stats.chi2.sf(np.sum(z**2), z.size) < 1e-12


def test_weights_are_one_over_inclusion_and_the_mean_is_unbiased():
    sampler, inclusion = skewed(50, 5)
    values = np.random.default_rng(1).normal(3.0, 1.0, 50)
    means = []
    for _ in range(3000):
        units, weights = sampler.draw(5)
        np.testing.assert_allclose(weights, 5 / (50 * inclusion[units]), rtol=1e-12)
        means.append((weights * values[units]).mean())
    assert abs(np.mean(means) - values.mean()) < 4 * np.std(means) / np.sqrt(3000)


def test_an_epoch_as_sampler_has_distinct_rows_in_random_order():
    sampler, inclusion = skewed(40, 10)
    sampler = ImportanceSampler(rows(40), num_samples=10, seed=1)
    sampler.update(np.arange(40), np.random.default_rng(0).lognormal(0.0, 1.0, 40))
    first = np.zeros(40)
    for _ in range(2000):
        drawn = [(w, v) for _, w, v in DataLoader(sampler.dataset, 4, sampler=sampler)]
        which, weights = zip(*drawn, strict=True)
        units = torch.cat(which).numpy()
        assert np.unique(units).size == len(sampler) == 10
        np.testing.assert_allclose(torch.cat(weights), 10 / (40 * inclusion[units]), rtol=1e-6)
        first[units[:4]] += 1  # a batch is a random part of the epoch
    wanted = 0.4 * inclusion
    z = (first / 2000 - wanted) / np.sqrt(wanted * (1 - wanted) / 2000)
    assert abs(z).max() < 4.5


@pytest.mark.parametrize("policy", [None, Running(), Uniform()])
def test_updates_go_to_the_table(policy):
    sampler = ImportanceSampler(30, policy=policy)
    units, _ = sampler.draw(6)
    sampler.update(torch.from_numpy(units), torch.arange(1.0, 7.0, dtype=torch.bfloat16))
    mine = sampler.scores[units]
    if policy is None:
        np.testing.assert_array_equal(mine, np.arange(1.0, 7.0))
        assert (np.delete(sampler.scores, units) == -1).all()
    else:
        wanted = np.arange(1.0, 7.0) * 6 / 21 if policy.learns else np.ones(6)
        np.testing.assert_allclose(mine, wanted)


def test_any_number_of_workers_gives_the_same_batches():
    """Two workers are four batches ahead."""
    alone = train(ImportanceSampler(rows(60), seed=2, delay=4))
    same(alone, train(ImportanceSampler(rows(60), seed=2, delay=4), workers=2))
    hasty = train(ImportanceSampler(rows(60), seed=2))
    assert any(not np.array_equal(a[0], b[0]) for a, b in zip(alone, hasty, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("delay", [0, 2])
def test_a_resume_gives_the_same_bits(workers, delay):
    def fresh():
        return ImportanceSampler(rows(60), seed=5, delay=delay)

    whole = train(fresh(), workers=workers)
    sampler = fresh()
    begun = train(sampler, workers=workers, stop=5)
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    again = fresh()
    again.load_state_dict(torch.load(file, weights_only=True))
    # `train` scores by the number of the batch, which goes on.
    loader = DataLoader(again.dataset, batch_sampler=BatchSampler(again, 8, num_batches=12))
    if workers == 0:
        for number, ((x,), which, weights) in enumerate(loader, 6):
            begun.append((which.numpy(), weights.numpy()))
            again.update(which, (x - number).abs() * weights)
        same(whole, begun)
        # After an epoch's end the next one begins.
        assert len(train(again, stop=3)) == 3
    else:  # batches that the workers had ahead come first
        batches = islice(BatchSampler(again, 8, num_batches=12), 4)
        ahead = [[int(row) for row in batch] for batch in batches]
        assert ahead == [drawn.tolist() for drawn, _ in whole[5:9]]


def test_an_epoch_as_sampler_is_resumed():
    def fresh():
        return ImportanceSampler(rows(60), num_samples=20, seed=5)

    def batches(sampler, stop=None):
        for i, (_, which, _) in enumerate(DataLoader(sampler.dataset, 4, sampler=sampler), 1):
            yield which.tolist()
            sampler.update(which)
            if i == stop:
                return

    sampler, again = fresh(), fresh()
    begun = list(batches(sampler, stop=2))
    again.load_state_dict(sampler.state_dict())
    assert begun + list(batches(again)) == list(batches(fresh()))


def test_more_rows_than_multinomial_takes():
    count = 2**24 + 5
    with pytest.raises(RuntimeError, match="2\\^24"):
        torch.multinomial(torch.ones(count), 1)
    sampler = ImportanceSampler(count)
    sampler.table.replace(np.append(np.zeros(count - 1), 1.0))
    units, weights = sampler.draw(4)
    assert count - 1 in units
    assert weights[units == count - 1] == pytest.approx(4 / count)


def test_skipped_batches_and_free_updates():
    sampler = ImportanceSampler(20)
    batches = [sampler.draw(5)[0] for _ in range(3)]
    sampler.update(batches[1], np.ones(5))  # the first one was left out
    assert [draw.number for draw in sampler.out] == [2]
    sampler.update([0], [2.0])  # of no batch
    assert sampler.scores[0] == 2.0
    assert len(sampler.out) == 1


@pytest.mark.parametrize("now", [4, 12])
def test_a_dataset_that_changed_its_length_is_named(now):
    """Also between two epochs of one DataLoader, of a sampler as of a batch sampler."""
    for as_batches in (False, True):
        data = [0.0] * 10
        sampler = ImportanceSampler(data, num_samples=4)
        if as_batches:
            loader = DataLoader(sampler.dataset, batch_sampler=BatchSampler(sampler, 2))
        else:
            loader = DataLoader(sampler.dataset, 2, sampler=sampler)
        assert len(list(loader)) > 0
        data[:] = [0.0] * now
        with pytest.raises(ValueError, match=f"has {now} rows now and had 10"):
            list(loader)


def test_bad_input():
    data = [0.0] * 10
    sampler = ImportanceSampler(data)
    data.append(0.0)
    with pytest.raises(ValueError, match="has 11 rows now and had 10"):
        next(iter(BatchSampler(sampler, 2)))
    with pytest.raises(ValueError, match="dataset with 10 rows, this one has 11"):
        ImportanceSampler(data).load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match="format None, expected 1"):
        sampler.load_state_dict({})
    with pytest.raises(ValueError, match="row 4 scores nan"):
        sampler.update([3, 4], [1.0, float("nan")])
    with pytest.raises(ValueError, match=r"2 rows but scores of shape \(1,\)"):
        sampler.update([3, 4], [1.0])
    with pytest.raises(ValueError, match=r"row 10 is outside 0\.\.9"):
        sampler.update([10], [1.0])
    with pytest.raises(ValueError, match="batch_size=11 exceeds the 10 rows"):
        BatchSampler(sampler, 11)
    with pytest.raises(ValueError, match="give the sampler the dataset"):
        ImportanceSampler(10).dataset  # noqa: B018
    with pytest.raises(TypeError, match="rows without weights"):
        sampler.dataset[3]
    with pytest.raises(ValueError, match="policy=current"):
        ImportanceSampler(10, policy=Current())
