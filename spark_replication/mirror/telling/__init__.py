"""The way from the controller's news to rows."""
