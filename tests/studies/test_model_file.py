"""A model file gives the same predictions as the arrays that it was made from."""

import json

import numpy as np
import pyarrow as pa
import pytest

from isfed import Columns, read_table
from isfed.datasets.read_options import Reading
from isfed.datasets.table_data import encode_features
from isfed.studies.model_file import SavedModel, load_model, probabilities

ROWS = {
    "site": ["b", "a", "b", "a", "b", "a"],
    "x": [1.0, 2.0, 3.0, 4.0, 6.0, None],
    "colour": ["red", "blue", "red", "green", "blue", "red"],
    "seven": [7] * 6,
    "y": [0.5, 1.5, 2.5, 3.5, 4.5, 0.1],
}


def saved(tmp_path, **changes):
    columns = Columns(agent="site", target="y", missing="mean", **changes)
    table = read_table(pa.table(ROWS), columns)
    width = 3 if changes else 1
    params = np.arange(1.0, 1 + width * len(table.features)).reshape(width, -1)
    SavedModel(params, table.recipe, Reading(), {"algorithm": "a"}).save(tmp_path / "m.json")
    return table, params, load_model(tmp_path / "m.json")


def test_the_training_table_comes_back_in_its_own_order(tmp_path):
    table, params, model = saved(tmp_path)
    expected = np.empty(6)
    expected[table.rows] = table.data.features @ params[0]
    np.testing.assert_allclose(model.columns(pa.table(ROWS))["y"], expected, rtol=1e-12)


def test_neither_agents_nor_targets_nor_constants_are_needed(tmp_path):
    _, _, model = saved(tmp_path)
    new = pa.table({"colour": ["blue", "red"], "x": [2.0, None]})
    found = model.columns(new)["y"]
    whole = model.columns(pa.table(ROWS))["y"]
    np.testing.assert_allclose(found, [whole[1], whole[5]], rtol=1e-12)
    with pytest.raises(ValueError, match="has no column 'x'"):
        model.columns(pa.table({"colour": ["blue"]}))
    with pytest.raises(ValueError, match=r"row 1, column 'colour': 'pink' never occurs"):
        model.columns(pa.table({"colour": ["pink"], "x": [1.0]}))


def test_classes_come_by_name_with_probabilities(tmp_path):
    rows = {**ROWS, "y": ["u", "v", "w", "u", "v", "w"]}
    table = read_table(
        pa.table(rows), Columns(agent="site", target="y", task="classification", missing="mean")
    )
    params = np.random.default_rng(0).standard_normal((3, len(table.features)))
    SavedModel(params, table.recipe, Reading(), {}).save(tmp_path / "m.json")
    found = load_model(tmp_path / "m.json").columns(pa.table(rows))
    shares = np.stack([found[f"probability of {name}"] for name in "uvw"], axis=1)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert found["y"] == ["uvw"[place] for place in shares.argmax(axis=1)]


def test_two_classes_have_the_logistic_probability():
    shares = probabilities(np.array([[0.3], [-2.0]]))
    np.testing.assert_allclose(shares[:, 1], 1 / (1 + np.exp([-0.3, 2.0])))


def test_predictions_come_as_a_table_and_can_follow_the_columns_that_are_there(tmp_path):
    _, _, model = saved(tmp_path)
    new = pa.table({"day": ["2024-01-31", " n "], "colour": ["blue", "red"], "x": [2.0, None]})
    found = model.predict(new)
    assert found.column_names == ["y"]
    assert found.column("y").to_pylist() == pytest.approx(model.columns(new)["y"].tolist())
    whole = model.predict(new, append=True)
    assert whole.column_names == ["day", "colour", "x", "predicted y"]
    assert whole.column("x").to_pylist() == [2.0, None]  # as it was, not as it was filled
    assert whole.column("predicted y") == found.column("y")
    with pytest.raises(ValueError, match="has a column 'predicted y' already"):
        model.predict(whole, append=True)
    rows = {**ROWS, "y": ["u", "v", "w", "u", "v", "w"]}
    columns = Columns(agent="site", target="y", task="classification", missing="mean")
    recipe = read_table(pa.table(rows), columns).recipe
    params = np.zeros((3, len(recipe.features)))
    (tmp_path / "new.csv").write_text("colour;x\nred;1\n")
    found = SavedModel(params, recipe, Reading(), {}).predict(tmp_path / "new.csv", append=True)
    shares = [f"probability of {name}" for name in "uvw"]
    assert found.column_names == ["colour", "x", "predicted y", *shares]
    assert [found.column(name)[0].as_py() for name in shares] == pytest.approx([1 / 3] * 3)


def test_another_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "m.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(ValueError, match=r"m\.json is not a model .*its format is 'other'"):
        load_model(tmp_path / "m.json")
    with pytest.raises(ValueError, match="there is no model file"):
        load_model(tmp_path / "none.json")


@pytest.mark.parametrize("cell", ["", "NA"])
def test_a_single_new_row_may_miss_a_value_if_the_training_could(tmp_path, cell):
    text = "site,x,k,y\n" + "".join(f"s{i % 2},{i * i},{'uv'[i % 2]},{2 * i}\n" for i in range(8))
    (tmp_path / "t.csv").write_text(text)
    (tmp_path / "new.csv").write_text(f"x,k\n{cell},u\n")
    strict, filled = (
        read_table(tmp_path / "t.csv", Columns(agent="site", target="y", missing=missing)).recipe
        for missing in ("error", "mean")
    )
    with pytest.raises(ValueError, match="fill it in, or train the model with missing='mean'"):
        encode_features(tmp_path / "new.csv", strict)
    found = encode_features(tmp_path / "new.csv", filled)
    np.testing.assert_allclose(found, [[0.0, 1.0, 0.0, 1.0]], atol=1e-12)
    (tmp_path / "new.csv").write_text("x,k\n17.5,\n")
    found = encode_features(tmp_path / "new.csv", filled)
    np.testing.assert_allclose(found, [[0.0, 0.5, 0.5, 1.0]], atol=1e-12)
