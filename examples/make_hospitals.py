"""Write hospitals.csv, a made-up table to try `isfed compare` on: 40 hospitals, 60 patients each.

python examples/make_hospitals.py
"""

import csv

import numpy as np

rng = np.random.default_rng(0)
with open("hospitals.csv", "w", newline="", encoding="utf-8") as file:
    table = csv.writer(file)
    table.writerow(["hospital", "age", "severity", "procedures", "days"])
    for hospital in range(40):
        noise = 8.0 if hospital % 10 == 0 else 0.8  # every tenth records the days carelessly
        for _ in range(60):
            age, severity, procedures = rng.uniform(20, 90), rng.gamma(2.0), rng.poisson(1.5)
            days = 1.0 + 0.05 * age + 1.5 * severity + 0.7 * procedures + noise * rng.normal()
            row = [f"{age:.0f}", f"{severity:.2f}", procedures, f"{max(days, 0.1):.1f}"]
            table.writerow([f"hospital {hospital:02}", *row])
