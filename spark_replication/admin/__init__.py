"""The tools for people: the command line, helpers for notebooks, jobs, the drill and benchmarks."""
