"""`isfed reproduce systems` as a user meets it."""


def test_several_jobs_need_no_backend(monkeypatch, run):
    """Parts run side by side unless a backend is named."""
    asked = []

    def noted(study, folder, *, progress, workers, **options):
        asked.append(workers)
        raise ValueError("enough")

    monkeypatch.setattr("isfed.experiments.systems.run_systems", noted)
    code, _ = run("reproduce", "systems", "--jobs", "2")
    assert code == 2
    assert (asked[0].backend, asked[0].jobs) == ("loky", 2)
