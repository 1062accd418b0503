"""What must hold in a simulated world: after each event, and at its end."""
