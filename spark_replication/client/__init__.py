"""Producers and readers: they find a partition's leader, and go on with the next one when it changes."""
