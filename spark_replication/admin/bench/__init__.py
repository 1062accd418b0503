"""Benchmarks, each beside the machine's limit."""
