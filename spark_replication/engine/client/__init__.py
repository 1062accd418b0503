"""A client's machines: what it sends and asks, to whom and when, and what the answers mean. No threads, no sockets."""
