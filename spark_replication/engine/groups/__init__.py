"""Who coordinates consumer groups, and who is a member of one."""
