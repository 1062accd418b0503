"""A topic's Delta table: its files, its commits and its upkeep, on disk and in object stores."""
