"""What a replica decides about its log's end, its epochs, its ISR and its producers."""
