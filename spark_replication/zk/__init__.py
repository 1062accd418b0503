"""ZooKeeper: the layout, a session, the controller's and the broker's store, and a server from pyspark's jars."""
