"""What a process claims for itself in ZooKeeper, whichever answers are lost: to live, to command, to stop, a number."""
