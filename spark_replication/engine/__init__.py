"""Steps: takes an event, asks core, performs effects through ports in the order given. No decision is made here."""
