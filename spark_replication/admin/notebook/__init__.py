"""A cluster in a notebook, as tables, charts and plans (`sr.connect`)."""
