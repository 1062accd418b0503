"""The runner of scenario files."""
