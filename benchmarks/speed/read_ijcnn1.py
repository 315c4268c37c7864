"""Time to read ijcnn1 and build the paper's federated data, against scikit-learn's reader alone.

    ISFED_DATA=/folder/of/data python benchmarks/speed/read_ijcnn1.py

Both read the two packed files; ours also checks them and makes the dense, partitioned arrays. The
two take turns, and the fastest of each counts: the machine may be busy with other things.
"""

import time

from sklearn.datasets import load_svmlight_file

from isfed.datasets import named_datasets as datasets
from isfed.datasets import partition
from isfed.datasets.dataset_files import content_of

REPEATS = 7
LIMIT = 2.0


def reader_alone(paths: list[str]) -> None:
    """What scikit-learn does: sparse matrices."""
    for path in paths:
        load_svmlight_file(path, n_features=22)


def federated() -> None:
    """The paper's 100 agents of 79 to 688 rows, and the test set."""
    data = datasets.ijcnn1()
    x, y = data.train.features, data.train.targets
    sizes = partition.sizes_in_range(len(y), num_agents=100, low=79, high=688)
    partition.iid(len(y), num_agents=100, sizes=sizes).federate(x, y)


def seconds(function, *arguments) -> float:
    """One call."""
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def main() -> None:
    """Print both times and their ratio."""
    files = (datasets.IJCNN1_TRAIN, datasets.IJCNN1_TEST)
    paths = [str(content_of(file)[0]) for file in files]
    alone, ours = [], []
    for _ in range(REPEATS):
        alone.append(seconds(reader_alone, paths))
        ours.append(seconds(federated))
    ratio = min(ours) / min(alone)
    print(f"scikit-learn's reader alone  {min(alone):.2f} s")
    print(f"read, check and federate     {min(ours):.2f} s")
    print(f"ratio                        {ratio:.2f} (limit {LIMIT})")


if __name__ == "__main__":
    main()
