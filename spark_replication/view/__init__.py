"""What people are shown of a cluster: one vocabulary, what keeps it from health, and what mends it. Pure."""
