"""The page, which shows in a browser how a cluster is. It only reads, and is a client like any other."""
