"""Claims of a process in ZooKeeper, whichever answers are lost: a registration, the command, the mark of a stop, an
id."""
