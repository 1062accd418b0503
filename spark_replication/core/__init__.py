"""Decides: pure functions of values, no clock, no IO. What can lose data is decided here and nowhere else."""
