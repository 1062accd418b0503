"""Threads and processes: what the outside of the engines looks like when it is real."""
