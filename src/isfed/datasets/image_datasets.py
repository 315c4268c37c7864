"""MNIST and Fashion-MNIST as networks take them, from files in the usual IDX form."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from isfed.datasets.dataset_files import VARIABLE, DataMissingError, search_folders
from isfed.datasets.libsvm_reader import unpacked
from isfed.datasets.named_datasets import read_idx

HOMES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
}
PARTS = {"train": 60_000, "t10k": 10_000}


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
    found = []
    for part, count in PARTS.items():
        pixels = _read(name, f"{part}-images-idx3-ubyte", data_dir)
        labels = _read(name, f"{part}-labels-idx1-ubyte", data_dir)
        if pixels.shape != (count, 28, 28) or labels.shape != (count,):
            raise ValueError(
                f"the {part} files of {name} hold images {pixels.shape} and labels {labels.shape}, "
                f"expected {count} of each"
            )
        if labels.max() > 9:
            raise ValueError(f"the {part} labels of {name} go to {labels.max()}, expected 0 to 9")
        found += [pixels.astype(np.float32) / np.float32(255.0), labels.astype(np.int64)]
    return Images(*found)


def _read(name: str, stem: str, data_dir: str | Path | None) -> np.ndarray:
    folders = search_folders(data_dir)
    for folder in folders:
        for place in (folder / name, folder):
            for path in (place / f"{stem}.gz", place / stem):
                if path.is_file():
                    return read_idx(unpacked(path), path.name)
    looked = ", ".join(str(folder / name) for folder in folders)
    raise DataMissingError(
        f"{stem}.gz was not found (looked in {looked}). Get {HOMES[name]}/{stem}.gz on a machine "
        f"with a network and put it at {folders[-1] / name / stem}.gz, or set {VARIABLE} to the "
        f"folder that has {name}/{stem}.gz"
    )
