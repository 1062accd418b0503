"""The failover drill."""
