"""Keeps replicas on disk: segments that are plain Arrow streams, their batch index, and what a broker's directory says
of itself. Decides nothing about replication; after a crash it finds what is whole."""
