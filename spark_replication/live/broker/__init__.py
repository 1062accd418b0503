"""A broker's process."""
