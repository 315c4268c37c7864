"""The estimate of the time that a comparison takes, and what it advises."""

from isfed import EQUAL, FedAvg, ISFedAvg
from isfed.studies.comparison import Budget, Forecast, forecast, work_of

BUDGET = Budget(num_active=2, rounds=400, repetitions=10)


def test_a_short_trial_gives_an_estimate():
    problem = EQUAL.replace(num_agents=8, num_examples=10).make()
    algorithms = [FedAvg(step_size=1.0, num_active=2), ISFedAvg(step_size=1.0, num_active=2)]
    found = forecast(problem, algorithms, BUDGET)
    assert work_of(BUDGET) == (400 * (28 + 2 * 4), 400 * 2 * 10)
    assert set(found.rates) == {a.name + more for a in algorithms for more in ("", ", step sizes")}
    assert found.seconds > 0.0
    assert found.line().startswith("This will take about ")


def test_what_takes_long_says_what_to_reduce():
    line = Forecast(10_000.0, BUDGET).line()
    assert "about 2.8 hours" in line
    assert "--rounds 200 --repetitions 5" in line
    assert "isfed diagnose" in line


def test_advice_is_never_what_was_asked_for():
    short = Budget(num_active=1000, rounds=200, repetitions=5)
    line = Forecast(10_000.0, short).line()
    assert "--rounds" not in line
    assert "use --active 100 (agents per round), or fewer rows;" in line
    least = Budget(num_active=2, rounds=200, repetitions=3)
    assert "use fewer rows;" in Forecast(10_000.0, least).line()
