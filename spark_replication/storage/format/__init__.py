"""What is stored: batches, index entries, digests."""
