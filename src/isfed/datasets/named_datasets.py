"""Public data sets: ijcnn1, MNIST (also by writer), Fashion-MNIST, Parkinson's, and two bundled.

Files are found or fetched by `isfed.datasets.dataset_files`; what is read has to have known counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from isfed.datasets.dataset_files import (
    File,
    content_of,
    find_file,
    missing_file,
    search_folders,
    unpacked,
)
from isfed.datasets.libsvm_reader import read_libsvm
from isfed.datasets.partition import by_column
from isfed.datasets.table_sources import open_source
from isfed.problems.federated_data import FederatedData

_GITHUB = "https://raw.githubusercontent.com"
_TICK = (
    f"{_GITHUB}/X-DataInitiative/tick-datasets/9d959b6e53e17145e93e9849ff1f9f6d2de8ae51"
    "/binary/ijcnn1"
)
_QMNIST = f"{_GITHUB}/facebookresearch/qmnist/94061367ec2e099ea18c553c75727ecf849ddb9b"
_PARKINSONS = (
    f"{_GITHUB}/behnazrzf/Parkinson-s_Telemonitoring/f603774b38bfc967f20b4752bec4b6f872917d98/data"
)
_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/parkinsons/telemonitoring"
# As sha256sum prints them, but of the unpacked content.
_SHA256 = """
7fe291672c3fefe6a7e3c51529becd23f0e985ba05ffb8d53c9c648c1e91cc19 ijcnn1.trn.bz2
e7b0bbd518641980dc322746c6bc59d019d3153934e6258e48f9d8cfae2c4bb8 ijcnn1.tst.bz2
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db train-images-idx3-ubyte.gz
bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5 qmnist-train-labels-idx2-int.gz
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7 t10k-images-idx3-ubyte.gz
92d0ccb8c25f9c6534270fb4be7e1d24a1c6d315edfc8a638bfbd31c70f362dd qmnist-test-labels-idx2-int.gz
f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39 parkinsons_updrs.data
"""
_SHA256_OF = {name: sha256 for sha256, name in map(str.split, _SHA256.split("\n")[1:-1])}


def _file(folder: str, name: str, *homes: str) -> File:
    return File(folder, name, _SHA256_OF[name], tuple(f"{home}/{name}" for home in homes))


IJCNN1_TRAIN = _file("ijcnn1", "ijcnn1.trn.bz2", _TICK)
IJCNN1_TEST = _file("ijcnn1", "ijcnn1.tst.bz2", _TICK)
MNIST_FILES = {
    part: (
        _file("mnist", f"{images}-images-idx3-ubyte.gz", *_MNIST),
        _file("mnist", f"qmnist-{part}-labels-idx2-int.gz", _QMNIST),
    )
    for part, images in (("train", "train"), ("test", "t10k"))
}
PARKINSONS = _file("parkinsons-telemonitoring", "parkinsons_updrs.data", _UCI, _PARKINSONS)
IMAGE_HOMES = {
    "mnist": _MNIST[0],
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
}
IMAGE_PARTS = {"train": 60_000, "t10k": 10_000}


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows that are not yet anybody's; `groups` is the column that naturally says whose."""

    features: np.ndarray  # (N, M)
    targets: np.ndarray  # (N,)
    groups: np.ndarray | None = None  # (N,)

    @property
    def num_groups(self) -> int:
        """How many agents `federate` makes."""
        return 0 if self.groups is None else np.unique(self.groups).size

    def federate(self) -> FederatedData:
        """One agent for every group."""
        if self.groups is None:
            raise ValueError("these examples have no natural groups; use isfed.datasets.partition")
        return by_column(self.groups).federate(self.features, self.targets)


def _expect(what: str, value: object, known: object) -> None:
    if value != known:
        raise ValueError(f"{what}: {value}, but {known} is known of this data set")


class Ijcnn1(NamedTuple):
    """Training (the paper's 35 000 rows), validation and test; targets -1 and +1, 22 features.

    The rows of training and validation are one time series: neighbours are alike.
    """

    train: Examples
    validation: Examples
    test: Examples


IJCNN1_ROWS, IJCNN1_POSITIVE = (35_000, 14_990, 91_701), (3_415, 1_438, 8_712)


def ijcnn1(data_dir: str | Path | None = None) -> Ijcnn1:
    """The paper's classification data (IJCNN 2001 challenge; LIBSVM's version)."""
    (x, y), test = (_ijcnn1_file(file, data_dir) for file in (IJCNN1_TRAIN, IJCNN1_TEST))
    first = IJCNN1_ROWS[0]
    parts = [Examples(x[:first], y[:first]), Examples(x[first:], y[first:]), Examples(*test)]
    _expect("rows of ijcnn1", tuple(len(part.targets) for part in parts), IJCNN1_ROWS)
    positive = tuple(int((part.targets > 0).sum()) for part in parts)
    _expect("positive rows of ijcnn1", positive, IJCNN1_POSITIVE)
    return Ijcnn1(*parts)


def _ijcnn1_file(file: File, data_dir: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    path, content = content_of(file, data_dir)
    x, y, _ = read_libsvm(path, num_features=22, content=content)
    return x, y


_IDX_TYPES = {0x08: ">u1", 0x0C: ">i4"}


def read_idx(content: bytes, name: str) -> np.ndarray:
    """An array in the idx format: two zeros, type, number of axes, their lengths, the entries."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise ValueError(f"{name} is not an idx file: it begins with {content[:4].hex(' ')}")
    axes, dtype = content[3], np.dtype(_IDX_TYPES[content[2]])
    begin = 4 + 4 * axes
    if len(content) < begin:
        raise ValueError(f"{name} ends after {len(content)} bytes, inside its header")
    shape = np.frombuffer(content[4:begin], ">u4").astype(int)
    expected = begin + int(shape.prod()) * dtype.itemsize
    if len(content) != expected:
        raise ValueError(f"{name} has {len(content)} bytes, its header asks for {expected}")
    return np.frombuffer(content, dtype, offset=begin).reshape(shape)


class Writers(NamedTuple):
    """MNIST with the writer of every image as its group; nobody wrote for both parts."""

    train: Examples
    test: Examples


def mnist_by_writer(data_dir: str | Path | None = None) -> Writers:
    """Digits as 784 grey levels in [0, 1], targets 0 to 9 (MNIST, writers from QMNIST)."""
    train, test = (_mnist_part(*MNIST_FILES[part], data_dir) for part in ("train", "test"))
    for part, rows, writers in ((train, 60_000, 539), (test, 10_000, 297)):
        _expect("rows of MNIST", len(part.targets), rows)
        _expect("writers of MNIST", part.num_groups, writers)
    return Writers(train, test)


def _mnist_part(images: File, labels: File, data_dir: str | Path | None) -> Examples:
    pixels = read_idx(content_of(images, data_dir)[1], images.name)
    # QMNIST's columns: 0 is the digit, 2 the writer. Its test part goes on after MNIST's 10 000.
    extended = read_idx(content_of(labels, data_dir)[1], labels.name)[: len(pixels)]
    flat = pixels.reshape(len(pixels), -1) / 255.0
    return Examples(flat, extended[:, 0].astype(np.float64), extended[:, 2].astype(np.int64))


class Images(NamedTuple):
    """Grey images in [0, 1], (N, 28, 28) of float32, with their classes 0 to 9."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def mnist(data_dir: str | Path | None = None) -> Images:
    """Handwritten digits."""
    return _images("mnist", data_dir)


def fashion_mnist(data_dir: str | Path | None = None) -> Images:
    """Pieces of clothing."""
    return _images("fashion-mnist", data_dir)


def _images(name: str, data_dir: str | Path | None) -> Images:
    arrays = []
    for part, count in IMAGE_PARTS.items():
        pixels = _read(name, f"{part}-images-idx3-ubyte", data_dir)
        labels = _read(name, f"{part}-labels-idx1-ubyte", data_dir)
        if pixels.shape != (count, 28, 28) or labels.shape != (count,):
            raise ValueError(
                f"the {part} files of {name} hold images {pixels.shape} and labels {labels.shape}, "
                f"expected {count} of each"
            )
        if labels.max() > 9:
            raise ValueError(f"the {part} labels of {name} go to {labels.max()}, expected 0 to 9")
        arrays += [pixels.astype(np.float32) / np.float32(255.0), labels.astype(np.int64)]
    return Images(*arrays)


def _read(name: str, stem: str, data_dir: str | Path | None) -> np.ndarray:
    path = find_file(name, [f"{stem}.gz", stem], data_dir)
    if path is not None:
        return read_idx(unpacked(path), path.name)
    file = File(name, f"{stem}.gz", "", (f"{IMAGE_HOMES[name]}/{stem}.gz",))
    raise missing_file(file, search_folders(data_dir)[-1] / name, data_dir, "")


SUBJECT, SCORES = "subject#", ("motor_UPDRS", "total_UPDRS")


def parkinsons(
    data_dir: str | Path | None = None,
    *,
    target: Literal["motor_UPDRS", "total_UPDRS"] = "total_UPDRS",
) -> Examples:
    """Voice measures of 42 subjects, the group of every row, and the score of their symptoms."""
    if target not in SCORES:
        raise ValueError(f"target={target!r} must be one of {', '.join(SCORES)}")
    path, _ = content_of(PARKINSONS, data_dir)
    table = open_source(path).table
    _expect("rows and columns of Parkinson's", (table.num_rows, table.num_columns), (5_875, 22))
    subjects = table.column(SUBJECT).to_numpy()
    _expect("subjects of Parkinson's", np.unique(subjects).size, 42)
    names = [name for name in table.column_names if name not in (SUBJECT, *SCORES)]
    features = np.column_stack([table.column(name).to_numpy() for name in names])
    return Examples(features.astype(np.float64), table.column(target).to_numpy(), subjects)


def _bundled(name: str) -> list[np.ndarray]:
    from sklearn import datasets  # takes a second to import

    loaded = getattr(datasets, f"load_{name}")(return_X_y=True)
    return [np.asarray(part, dtype=np.float64) for part in loaded]


def digits() -> Examples:
    """1797 small digits, 64 grey levels in [0, 1], targets 0 to 9; always there."""
    x, y = _bundled("digits")
    return Examples(x / 16.0, y)


def breast_cancer() -> Examples:
    """569 tumours, 30 measures of any scale, targets -1 (malignant) and +1; always there."""
    x, y = _bundled("breast_cancer")
    return Examples(x, 2.0 * y - 1.0)
