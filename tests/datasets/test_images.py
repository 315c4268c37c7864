"""Images from IDX files, FedProx's synthetic agents, and partitioners of flwr-datasets."""

import gzip
import struct
import sys
import types
from contextlib import nullcontext

import numpy as np
import pytest

from isfed.datasets import named_datasets
from isfed.datasets.dataset_files import VARIABLE, DataMissingError
from isfed.datasets.partition import from_flwr

RNG = np.random.default_rng(0)


def idx(array):
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Small files in the usual form, one of them not packed."""
    monkeypatch.setattr(named_datasets, "IMAGE_PARTS", {"train": 6, "t10k": 3})
    monkeypatch.setattr("isfed.datasets.dataset_files.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv(VARIABLE, raising=False)
    place = tmp_path / "fashion-mnist"
    place.mkdir()
    for part, count in named_datasets.IMAGE_PARTS.items():
        pixels = idx(RNG.integers(0, 256, (count, 28, 28)))
        (place / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        (place / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count) % 10))
    return tmp_path


def test_files_are_read_packed_or_not(folder):
    found = named_datasets.fashion_mnist(folder)
    assert found.train_x.shape == (6, 28, 28)
    assert found.train_x.dtype == np.float32
    assert 0.0 <= found.train_x.min() < found.train_x.max() <= 1.0
    assert found.test_y.tolist() == [0, 1, 2]


def test_missing_files_are_named_with_what_to_do(folder):
    with pytest.raises(DataMissingError, match=r"train-images-idx3-ubyte.gz was not found.*mnist"):
        named_datasets.mnist(folder)
    (folder / "fashion-mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataMissingError, match=r"Get http.*t10k-labels-idx1-ubyte.gz"):
        named_datasets.fashion_mnist(folder)


def test_files_of_another_size_are_refused(folder):
    (folder / "fashion-mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(4)))
    with pytest.raises(ValueError, match=r"labels \(4,\), expected 6"):
        named_datasets.fashion_mnist(folder)
    (folder / "fashion-mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(6) + 9))
    with pytest.raises(ValueError, match="go to 14, expected 0 to 9"):
        named_datasets.fashion_mnist(folder)


class Dealer:
    """What flwr-datasets has: a data set is put in, and its parts are asked for."""

    def __init__(self, owner_of):
        self.owner_of, self.num_partitions = owner_of, 3
        self.dataset: dict = {}

    def load_partition(self, k):
        rows = [i for i, label in enumerate(self.dataset["label"]) if self.owner_of(label) == k]
        return {name: [values[i] for i in rows] for name, values in self.dataset.items()}


@pytest.fixture
def datasets(monkeypatch):
    fake = types.ModuleType("datasets")
    fake.Dataset = types.SimpleNamespace(from_dict=dict)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)


def test_partitioners_of_flwr_datasets_are_accepted(datasets):
    labels = np.array([2, 0, 1, 1, 0, 2, 2])
    partition = from_flwr(Dealer(lambda label: label), label=labels)
    assert partition.sizes.tolist() == [2, 2, 3]
    assert labels[partition.rows].tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_rows_that_a_partitioner_leaves_out_are_not_used(datasets):
    labels = np.array([0, 7, 1, 2, 7])
    with pytest.warns(UserWarning, match="Dealer leaves out 2 of 5 rows"):
        partition = from_flwr(Dealer(lambda label: label), label=labels)
    data = partition.federate(np.arange(10.0).reshape(5, 2), labels)
    assert data.targets.tolist() == [0, 1, 2]
    assert data.features[:, 0].tolist() == [0.0, 4.0, 6.0]
    with pytest.raises(ValueError, match="the partition is of 5 rows, but there are 3"):
        partition.federate(np.zeros((3, 2)), np.zeros(3))


@pytest.mark.parametrize(
    ("name", "options", "lost"),
    [
        ("DirichletPartitioner", {"partition_by": "label", "alpha": 0.5}, False),
        ("IidPartitioner", {}, False),
        (
            "PathologicalPartitioner",
            {"partition_by": "label", "num_classes_per_partition": 1},
            True,
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Classes")
def test_the_real_flwr_datasets(name, options, lost):
    real = pytest.importorskip("flwr_datasets.partitioner")
    labels = np.repeat(np.arange(5), 40)
    partitioner = getattr(real, name)(num_partitions=4, **options)
    warned = pytest.warns(UserWarning, match="leaves out 80 of 200") if lost else nullcontext()
    with warned:
        partition = from_flwr(partitioner, label=labels)
    expected = [partitioner.load_partition(k)["label"] for k in range(4)]
    data = partition.federate(labels[:, None], labels)
    for k, theirs in enumerate(expected):
        assert data.agent(k)[1].tolist() == list(theirs)


def test_partitioners_that_give_a_row_twice_are_refused(datasets):
    with pytest.raises(ValueError, match="leaves agent 2 without examples"):
        from_flwr(Dealer(lambda label: min(label, 1)), label=np.array([0, 1, 2]))
    twice = Dealer(lambda label: label)
    twice.load_partition = lambda k: {"isfed-row": [0, k]}
    with pytest.raises(ValueError, match="deals 6 rows of which only 3 are different"):
        from_flwr(twice, label=[0, 1, 2])
    with pytest.raises(ValueError, match="one length"):
        from_flwr(Dealer(lambda label: label), label=[0, 1], other=[1])


def test_without_flwr_datasets_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install flwr-datasets"):
        from_flwr(Dealer(lambda label: label), label=[0])
