"""Delta: files and object stores, writes, reads and upkeep."""
