"""Producers, readers and Admin. Each finds the leader or controller that it needs, and the next one after a change."""
