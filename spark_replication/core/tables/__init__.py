"""A topic that is also a table: what its writers add, what a refused commit means, when a table is sealed."""
