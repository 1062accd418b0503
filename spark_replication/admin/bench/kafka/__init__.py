"""Apache Kafka as the peer of a measurement: fetched, started here, and loaded by its own programs."""
