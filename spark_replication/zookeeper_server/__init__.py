"""ZooKeeper's servers, started from the jars inside pyspark."""
