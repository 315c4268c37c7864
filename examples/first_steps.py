"""Importance sampling against FedAvg, on 100 synthetic agents: the smallest complete program.

python examples/first_steps.py
"""

from isfed import PAPER, FedAvg, ISFedAvg, simulate

problem = PAPER.replace(num_agents=100).make(seed=0)  # least squares, 100 examples per agent
common = {"step_size": 0.01, "num_active": 6}  # 6 of the 100 agents work in each round
for algorithm in (FedAvg(**common), ISFedAvg(**common)):
    history = simulate(problem, algorithm, rounds=2000, repetitions=10)
    msd = history.steady()  # mean-square deviation from the minimiser, last quarter of the rounds
    print(f"{algorithm.name:16} {msd.db:6.1f} dB, standard error {msd.stderr_db:.1f}")
