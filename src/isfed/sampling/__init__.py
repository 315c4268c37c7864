"""Whom to hear: designs, policies, the score table, and telemetry of the weights."""
