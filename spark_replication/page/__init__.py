"""The page: how a cluster is, for whoever looks at it with a browser. Read-only, and a client like any other."""
