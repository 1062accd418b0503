"""The mirror in Delta: what the controller decided, as tables for routing and history. Derived, and never read back."""
