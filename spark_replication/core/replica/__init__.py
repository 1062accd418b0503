"""What a replica decides: its log's end, its epochs, its ISR, its producers."""
