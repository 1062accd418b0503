"""Both ends of each connection: followers that fetch, producers that put, readers that ask."""
