"""The log of one partition: segments, recovery, marks."""
