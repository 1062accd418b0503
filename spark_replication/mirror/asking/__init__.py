"""What the tables say, to whoever asks."""
