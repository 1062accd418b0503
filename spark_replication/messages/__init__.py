"""What processes say to each other: versioned msgspec structs, whole and checked from birth.

Between brokers they travel as msgpack before the stored bytes they describe (transport/replication); from controller,
guardians and clients as JSON in the body of a Flight action (transport/flight).
"""
