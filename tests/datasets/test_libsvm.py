"""LIBSVM files: values, and the line of everything that is wrong."""

import bz2
import gzip

import numpy as np
import pytest

from isfed.datasets.libsvm_reader import read_libsvm

GOOD = "# a comment\n+1 1:0.5 3:-2 # more\n\n-1 2:1e-3\n"


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.svm", bytes), ("a.svm.bz2", bz2.compress), ("a.svm.gz", gzip.compress)],
)
def test_values(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(GOOD.encode()))
    x, y, queries = read_libsvm(path)
    np.testing.assert_array_equal(x, [[0.5, 0.0, -2.0], [0.0, 1e-3, 0.0]])
    np.testing.assert_array_equal(y, [1.0, -1.0])
    np.testing.assert_array_equal(queries, [0, 0])
    assert read_libsvm(path, num_features=5)[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 0:1", "index 0 is less than 1"),
        ("1 -2:1", "index -2 is less than 1"),
        ("1 2:1 2:3", "index 2 occurs twice"),
        ("1 3:1 2:3", "index 2 comes after 3"),
        ("1 a:1", "index 'a' is not a whole number"),
        ("1 1.5:1", "index '1.5' is not a whole number"),
        ("1 1:x", "value 'x' of index 1 is not a finite number"),
        ("1 1:nan", "value 'nan' of index 1 is not a finite number"),
        ("1 1:inf", "value 'inf' of index 1 is not a finite number"),
        ("1 1", "'1' is not of the form index:value"),
        ("yes 1:1", "label 'yes' is not a finite number"),
        ("nan 1:1", "label 'nan' is not a finite number"),
        ("1 9:1", "index 9 exceeds the 4 features"),
        ("1 99999999999999999999:1", "index 99999999999999999999 exceeds the 4 features"),
    ],
)
def test_the_error_names_file_line_and_reason(tmp_path, line, reason):
    path = tmp_path / "bad.svm"
    path.write_text(GOOD + line + "\n" + "1 1:1\n")
    with pytest.raises(ValueError, match="line 5: ") as caught:
        read_libsvm(path, num_features=4)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_query_ids_are_read_and_all_lines_or_none_have_one(tmp_path):
    path = tmp_path / "q.svm"
    path.write_text("1 qid:7 1:1\n2 qid:9 1:3\n")
    assert read_libsvm(path)[2].tolist() == [7, 9]
    path.write_text("1 qid:7 1:1\n2 1:3\n")
    with pytest.raises(ValueError, match="1 of 2 lines have a qid"):
        read_libsvm(path)


def test_an_index_too_large_for_memory_is_an_error(tmp_path):
    path = tmp_path / "wide.svm"
    path.write_text("1 2000000000:1\n")
    with pytest.raises(ValueError, match="1 x 2000000000: 15 GiB"):
        read_libsvm(path)


def test_an_empty_or_broken_file_is_an_error(tmp_path):
    empty = tmp_path / "empty.svm"
    empty.write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"empty\.svm has no examples"):
        read_libsvm(empty)
    broken = tmp_path / "cut.svm.bz2"
    broken.write_bytes(bz2.compress(GOOD.encode())[:20])
    with pytest.raises(ValueError, match=r"cut\.svm\.bz2 cannot be unpacked"):
        read_libsvm(broken)
