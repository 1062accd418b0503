"""What the controller decides about the state of a whole cluster."""
