"""What a controller reads from and writes to ZooKeeper."""
