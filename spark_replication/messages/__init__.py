"""The messages between processes: versioned msgspec structs, each whole and checked when it is made.

Between brokers a message travels as msgpack, before the stored bytes that it describes (transport/replication).
Controller, guardians and clients send messages as JSON in the body of a Flight action (transport/flight).
"""
