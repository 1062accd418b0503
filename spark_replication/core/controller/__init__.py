"""What the controller decides, of the state of a whole cluster."""
