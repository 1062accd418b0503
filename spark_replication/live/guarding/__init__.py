"""Who starts, adopts and watches a broker, and what both of them read."""
