"""Which broker, or controller, is asked, and how it is reached."""
