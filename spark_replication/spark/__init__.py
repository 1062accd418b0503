"""What runs on Spark: guardians as barrier tasks, the driver's cluster, sources and sinks."""
