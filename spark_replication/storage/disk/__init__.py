"""Files: their operations, their failures, and when they are on the disk."""
