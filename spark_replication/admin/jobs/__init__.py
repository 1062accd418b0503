"""The parts of the programs in jobs/."""
