"""`isfed reproduce`: the paper's experiments in small."""

from __future__ import annotations

import json
import os

import pytest

from isfed.studies import experiment_config, load_results


def test_reproduce_regression_in_small(run, tmp_path):
    code, text = run(
        "reproduce", "regression", "--rounds", "20", "--repetitions", "2", "--no-heterogeneity"
    )
    assert code == 0, text
    for word in ("ISFedAvg, current", "23.1 dB", "1.22e-02", "uniform probabilities"):
        assert word in text
    assert (tmp_path / "runs" / "regression" / "msd.png").exists()


@pytest.mark.skipif(not os.environ.get("ISFED_DATA"), reason="set ISFED_DATA to the data sets")
def test_reproduce_classification_in_small(run, tmp_path):
    words = ["reproduce", "classification", "--rounds", "20", "--repetitions", "2"]
    code, text = run(*words)
    assert code == 0, text
    expected = ("the minimiser w^o itself", "always the majority class", "18.46%", "22.45%")
    for word in (*expected, "Best step size of memory", "best step"):
        assert word in text
    folder = tmp_path / "runs" / "classification-one-class"
    for name in ("times.json", "summary.json", "measures.parquet", "measures.png", "config.toml"):
        assert (folder / name).stat().st_size > 0
    code, text = run(*words)
    assert code == 1
    assert "--resume" in text
    assert run(*words[:2], "--partition", "natral")[0] == 2
    assert run(*words[:2], "--rounds", "0")[0] == 2


def test_absent_data_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ISFED_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    code, text = run("reproduce", "classification")
    assert code == 1
    assert "ijcnn1.trn.bz2" in text
    assert not (tmp_path / "runs").exists()


def _no_network(*_, **__):
    raise OSError("no network in this test")


def test_the_study_of_heterogeneity_heeds_the_options(run, tmp_path, monkeypatch):
    tables = experiment_config.study_tables("heterogeneity")
    tables["problem"]["over"] = {"noisy_share": [0.1], "noise_ratio": [3.0, 10.0], "seed": [0]}
    own = experiment_config.study_tables
    monkeypatch.setattr(
        experiment_config, "study_tables", lambda name: tables if name in str(tables) else own(name)
    )
    words = ["--rounds", "9", "--repetitions", "2", "--seed", "4"]
    code, text = run("reproduce", "regression", *words)
    assert code == 0, text
    study = load_results(tmp_path / "runs" / "regression" / "heterogeneity")
    assert [study.config[key] for key in ("rounds", "repetitions", "seed")] == [9, 2, 4]
    assert len(study.summary["points"]) == 2
    assert (study.path / "heterogeneity.png").exists()
    # The answer does not wait for the study.
    order = [text.index(words) for words in ("1.22e-02", "Results are in", "Now the gain over")]
    assert order == sorted(order)
    code, text = run("reproduce", "regression", *words, "--resume")
    assert code == 0, text


@pytest.mark.parametrize("option", [["--rounds", "0"], ["--rounds", "-1"], ["--seed", "-1"]])
def test_the_flower_engine_refuses_impossible_numbers(run, option):
    code, text = run("reproduce", "regression", "--engine", "flower", *option)
    assert code == 2
    assert f"{option[0][2:]}={option[1]}" in text


def test_one_repetition_gives_no_verdict_and_valid_json(run, tmp_path):
    words = ["--rounds", "8", "--repetitions", "1", "--no-heterogeneity"]
    code, text = run("reproduce", "regression", *words)
    assert code == 0, text
    assert "no verdict" in text

    def never(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    summary = (tmp_path / "runs" / "regression" / "summary.json").read_text()
    found = json.loads(summary, parse_constant=never)
    assert found["algorithms"][0]["msd_stderr_db"] is None
