"""What any process of ours needs of the operating system: threads, signals, locks, memory, Java."""
