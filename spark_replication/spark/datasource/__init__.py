"""`format("replicated_log")`: topics as Spark's tables and streams, by its Python Data Source, Arrow end to end."""
