"""What the programs in jobs/ are made of."""
