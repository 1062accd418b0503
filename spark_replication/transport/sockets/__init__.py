"""Bytes: frames, TLS, and one loop for all connections of a process."""
