"""The real outside of the engines: threads and processes."""
