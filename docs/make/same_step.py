"""The one-class classification at one and the same step size for FedAvg and memory.

    ISFED_DATA=... python docs/make/same_step.py [--step 2]

`isfed reproduce classification` compares each at its own best step; on the rows held out FedAvg is
as good at 2 as at 1, so part of the gap in distance to w^o is the step itself.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from isfed import simulate
from isfed.simulate.run_history import stderr_of_mean
from isfed.studies.tuned_step_sizes import Ijcnn1Source, paper_classification


def main() -> None:
    """Run both and print their last test error and their distance to w^o."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=float, default=2.0)
    step = parser.parse_args().step
    source = Ijcnn1Source()
    problem = source.make()
    measure = source.measure(problem)
    tuned = paper_classification(source)
    for name in ("FedAvg", "memory"):
        history = simulate(
            problem, replace(tuned.methods[name], step_size=step), rounds=tuned.rounds,
            repetitions=tuned.repetitions, seed=tuned.seed, measure=measure,
        )  # fmt: skip
        last = 100.0 * history.measured["test_error"][:, -1:]
        steady = history.steady()
        print(
            f"{name} at {step:g}: test error {last.mean():.2f} ± {stderr_of_mean(last)[0]:.2f} %, "
            f"distance {steady.db:.2f} ± {steady.stderr_db:.2f} dB",
            flush=True,
        )


if __name__ == "__main__":
    main()
