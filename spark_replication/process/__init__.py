"""What every process of this project needs from its operating system: threads, signals, locks, memory, Java."""
