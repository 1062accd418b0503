"""One replica of a partition: its roles, its log, who waits for it."""
