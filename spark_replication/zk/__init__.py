"""ZooKeeper: the layout, a session, and the stores of controller and broker."""
