"""The tables, their columns and keys, and the facts that they show."""
