"""Time, network, disks and ZooKeeper of a simulated world, with their faults."""
