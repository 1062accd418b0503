"""The door for every Arrow Flight client: actions, puts and reads."""
