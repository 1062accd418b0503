"""Keeps replicas on disk: segments, which are plain Arrow streams, their batch index, and the files that say what a
broker's directory is. It decides nothing about replication. After a crash it finds what is whole."""
