"""The process (or thread of a driver) that is the controller."""
