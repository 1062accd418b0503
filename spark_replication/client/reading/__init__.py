"""The way from offsets to rows."""
