"""The way from rows to acknowledgements."""
