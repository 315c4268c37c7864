"""`isfed reproduce systems` as a user meets it, on problems that are small."""

from isfed.studies import experiment_config

FIVE = {"num_active": 5}
OWN = {
    "FedCS": FIVE, "Hybrid-FL": FIVE, "FedAsync, event queue": {"in_flight": 3},
    "Stich's SGD": {"shift": 1000.0},
}  # fmt: skip
SMALL = {
    "regression": {
        "source": {"num_agents": 8, "num_examples": 6, "batch_size": [1, 3]},
        "rounds": 4, "repetitions": 2,
        "values": {"num_active": 3}, "own": OWN,
    },
    "synthetic(1,1)": {
        "source": {"num_agents": 5, "num_features": 3, "num_classes": 3, "most_examples": 60},
        "rounds": 3,
        "values": {"num_active": 3}, "own": OWN,
    },
}  # fmt: skip


def test_it_runs_draws_and_goes_on(run, monkeypatch, tmp_path):
    own = experiment_config.read_study
    monkeypatch.setattr(
        experiment_config, "read_study",
        lambda name, changes=None, **options: own(name, changes={"problem": SMALL}, **options),
    )  # fmt: skip
    words = ("reproduce", "systems", "--quick", "--backend", "threading", "--jobs", "1")
    code, text = run(*words)
    assert code == 0, text
    for word in ("FedProx, stragglers", "Hybrid-FL", "its own fixed point", "virtual seconds"):
        assert word in text
    folder = tmp_path / "runs" / "systems-quick"
    assert (folder / "systems-regression.png").stat().st_size > 10_000
    assert (folder / "systems-synthetic.svg").exists()
    code, text = run(*words)
    assert code == 1
    assert "--resume" in text
    code, text = run(*words, "--resume")
    assert code == 0


def test_several_jobs_need_no_backend(monkeypatch, run):
    """Parts run side by side unless a backend is named."""
    asked = []

    def noted(study, folder, *, progress, workers, **options):
        asked.append(workers)
        raise SystemExit(2)

    monkeypatch.setattr("isfed.studies.study_engine.run_study", noted)
    run("reproduce", "systems", "--jobs", "2")
    assert (asked[0].backend, asked[0].jobs) == ("loky", 2)
