"""What a broker reads from and writes to ZooKeeper."""
