"""A broker: its partitions, its life, and what it does at each tick."""
