"""The controller: how it comes to its seat, what it decides about, whom it commands."""
