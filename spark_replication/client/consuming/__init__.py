"""Reads topics together with others, and remembers how far."""
