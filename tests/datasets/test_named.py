"""Data sets: parsers on small generated files always, the real ones where they are."""

import bz2
import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isfed.datasets import named_datasets as datasets
from isfed.datasets.named_datasets import Examples, read_idx


def real(*wanted):
    """Skip unless $ISFED_DATA has the files."""
    folder = Path(os.environ.get("ISFED_DATA", ""))
    absent = [f.name for f in wanted if not (folder / f.folder / f.name).is_file()]
    reason = f"$ISFED_DATA has no {', '.join(absent)}"
    return pytest.mark.skipif(bool(absent) or not os.environ.get("ISFED_DATA"), reason=reason)


def idx(array, code):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.astype({0x08: ">u1", 0x0C: ">i4"}[code]).tobytes()


def save(folder, file, content, pack):
    """Write a generated file under a real one's name; returns what now describes it."""
    path = folder / file.folder / file.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pack(content))
    return replace(file, sha256=hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("code", [0x08, 0x0C])
def test_idx_arrays(code):
    array = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(read_idx(idx(array, code), "a"), array)


def test_idx_faults_are_named():
    good = idx(np.arange(6).reshape(2, 3), 0x08)
    with pytest.raises(ValueError, match="a is not an idx file: it begins with 01 00 08 02"):
        read_idx(b"\x01" + good[1:], "a")
    with pytest.raises(ValueError, match="a has 17 bytes, its header asks for 18"):
        read_idx(good[:-1], "a")
    with pytest.raises(ValueError, match="a ends after 9 bytes, inside its header"):
        read_idx(good[:9], "a")


def ijcnn1_text(num_rows, num_positive):
    rows = np.arange(num_rows)
    labels = np.where(rows < num_positive, 1.0, -1.0)
    return "".join(f"{y} {1 + i % 10}:1 22:{i}\n" for i, y in zip(rows, labels, strict=True))


def test_a_generated_ijcnn1(tmp_path, monkeypatch):
    text = ijcnn1_text(7, 2), ijcnn1_text(4, 1)
    for name, content in zip(("IJCNN1_TRAIN", "IJCNN1_TEST"), text, strict=True):
        file = save(tmp_path, getattr(datasets, name), content.encode(), bz2.compress)
        monkeypatch.setattr(datasets, name, file)
    monkeypatch.setattr(datasets, "IJCNN1_ROWS", (5, 2, 4))
    monkeypatch.setattr(datasets, "IJCNN1_POSITIVE", (2, 0, 1))
    data = datasets.ijcnn1(tmp_path)
    np.testing.assert_array_equal(data.train.targets, [1, 1, -1, -1, -1])
    np.testing.assert_array_equal(data.validation.features[:, 21], [5, 6])
    assert data.test.features.shape == (4, 22)
    monkeypatch.setattr(datasets, "IJCNN1_POSITIVE", (2, 0, 2))
    with pytest.raises(ValueError, match=r"positive rows of ijcnn1: \(2, 0, 1\), but \(2, 0, 2\)"):
        datasets.ijcnn1(tmp_path)


def test_a_generated_mnist_part(tmp_path):
    images, labels = datasets.MNIST_FILES["test"]
    pixels = np.random.default_rng(0).integers(256, size=(3, 28, 28))
    extended = np.zeros((5, 8), int)  # two rows more than there are images, as in QMNIST
    extended[:, 0], extended[:, 2] = [4, 9, 4, 1, 1], [70, 80, 70, 90, 90]
    images = save(tmp_path, images, idx(pixels, 0x08), gzip.compress)
    labels = save(tmp_path, labels, idx(extended, 0x0C), gzip.compress)
    part = datasets._mnist_part(images, labels, tmp_path)
    np.testing.assert_array_equal(part.features, pixels.reshape(3, 784) / 255)
    np.testing.assert_array_equal(part.targets, [4, 9, 4])
    data = part.federate()
    np.testing.assert_array_equal(data.num_examples, [2, 1])
    np.testing.assert_array_equal(data.features, part.features[[0, 2, 1]])


def test_a_generated_parkinsons_must_have_the_known_counts(tmp_path, monkeypatch):
    content = b"subject#,age,motor_UPDRS,total_UPDRS\n1,70,20.5,30.5\n2,60,21.5,31.5\n"
    file = save(tmp_path, datasets.PARKINSONS, content, bytes)
    monkeypatch.setattr(datasets, "PARKINSONS", file)
    with pytest.raises(ValueError, match=r"\(2, 4\), but \(5875, 22\) is known"):
        datasets.parkinsons(tmp_path)
    with pytest.raises(ValueError, match="target='age' must be one of"):
        datasets.parkinsons(tmp_path, target="age")  # type: ignore[arg-type]


def test_examples_without_groups_need_a_partition():
    with pytest.raises(ValueError, match="no natural groups"):
        Examples(np.ones((2, 1)), np.ones(2)).federate()


def test_the_bundled_sets():
    digits, cancer = datasets.digits(), datasets.breast_cancer()
    assert digits.features.shape == (1797, 64)
    assert digits.features.max() == 1.0
    assert set(digits.targets) == set(range(10))
    assert cancer.features.shape == (569, 30)
    assert (cancer.targets == 1).sum() == 357
    assert (cancer.targets == -1).sum() == 212


@real(datasets.IJCNN1_TRAIN, datasets.IJCNN1_TEST)
def test_the_real_ijcnn1():
    data = datasets.ijcnn1()
    for part, rows in ((data.train, 35_000), (data.validation, 14_990), (data.test, 91_701)):
        assert part.features.shape == (rows, 22)
        assert set(part.targets) == {-1.0, 1.0}
        np.testing.assert_array_equal(part.features[:, :10].sum(axis=1), 1.0)  # a phase of ten
    assert (data.train.targets > 0).mean() == pytest.approx(0.09757, abs=5e-6)
    # One time series: the last ten features are a window that moves by one.
    np.testing.assert_array_equal(data.train.features[1:, 12:-1], data.train.features[:-1, 13:])


@real(*datasets.MNIST_FILES["train"], *datasets.MNIST_FILES["test"])
def test_the_real_mnist():
    data = datasets.mnist_by_writer()
    train = data.train.federate()
    assert (train.num_agents, train.num_features, len(train.targets)) == (539, 784, 60_000)
    assert (train.num_examples.min(), train.num_examples.max()) == (19, 131)
    assert data.test.num_groups == 297
    assert data.train.groups is not None
    assert data.test.groups is not None
    assert not set(data.train.groups) & set(data.test.groups)
    known = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # published class counts
    np.testing.assert_array_equal(np.bincount(data.train.targets.astype(int)), known)


@real(datasets.PARKINSONS)
def test_the_real_parkinsons():
    examples = datasets.parkinsons()
    data = examples.federate()
    assert (data.num_agents, data.num_features, len(data.targets)) == (42, 19, 5_875)
    assert (data.num_examples.min(), data.num_examples.max()) == (101, 168)
    motor = datasets.parkinsons(target="motor_UPDRS").targets
    assert (motor <= examples.targets).all()  # the motor score is a part of the total
