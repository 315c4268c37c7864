"""`isfed leaderboard` as a user meets it."""

from __future__ import annotations

import tomli_w

from isfed.studies import load_results

SOURCE = {"preset": "outliers", "num_agents": 12, "num_examples": 10, "batch_size": [1, 4]}
FILE = {
    "name": "tiny", "version": 1, "rounds": 20, "repetitions": 2, "seed": 7, "trials": 2,
    "tuning_rounds": 20, "tuning_repetitions": 1, "tuning_seed": 8, "looks": 4, "decades": 4,
    "reference": "FedAvg",
    "problem": [{"name": "small", "num_active": 3, "source": SOURCE}],
    "method": [{"kind": "FedAvg"}, {"kind": "ISFedAvg"}, {"kind": "SCAFFOLD"}],
    "factorial": {"sampler": ["uniform", "by score"], "estimator": ["Horvitz-Thompson"],
                  "server": ["plain", "average"], "trials": 2, "repetitions": 2},
}  # fmt: skip


def test_a_small_leaderboard_from_start_to_verify(run, tmp_path):
    (tmp_path / "tiny.toml").write_text(tomli_w.dumps(FILE), encoding="utf-8")
    words = ["leaderboard", "--file", str(tmp_path / "tiny.toml"), "--jobs", "1"]
    code, text = run(*words, "--methods", "ISFedAvg")
    assert code == 0, text
    for word in ("Gain over FedAvg", "Ranking of methods", "What a part gains", "best combination"):
        assert word in text
    folder = tmp_path / "runs" / "tiny"
    results = load_results(folder)
    assert {row["method"] for row in results.summary["algorithms"]} == {"FedAvg", "ISFedAvg"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Performance profiles" in page
    assert "What a part gains" in page
    assert "Step sizes that were tried, small" in page
    code, text = run("leaderboard", "verify", str(folder), "--cells", "2")
    assert code == 0, text
    assert "the same bit for bit" in text
    code, text = run(*words, "--methods", "ISFedAvg", "--trials", "3", "--resume")
    assert code == 1
    assert "another configuration" in text


def test_a_plugin_that_fails_is_no_fault_of_isfed(run, tmp_path):
    path = tmp_path / "mine_fails.py"
    path.write_text("x = 1\nraise KeyError('mine')\n", encoding="utf-8")
    code, text = run("leaderboard", "--plugin", str(path))
    assert code == 1
    assert f"--plugin {path}: KeyError: 'mine' ({path}, line 2)" in " ".join(text.split())
    assert "fault" not in text


def test_mistakes_end_in_one_line(run):
    code, text = run("leaderboard", "--problems", "digts")
    assert code == 2
    assert "did you mean 'digits'" in text
    code, text = run("leaderboard", "--plugin", "nowhere.py")
    assert code == 2
    assert "there is no such file" in text
    code, text = run("leaderboard", "verify", "nowhere")
    assert code == 1
    assert "nowhere is not there" in text
