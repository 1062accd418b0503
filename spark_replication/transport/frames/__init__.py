"""The door for our own: followers, producers and readers over frames."""
