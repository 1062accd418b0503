"""Breaks: runs the production core and engine in worlds where everything that can fail does."""
