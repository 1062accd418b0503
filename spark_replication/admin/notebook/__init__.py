"""For notebooks: a cluster as tables, charts and plans (`sr.connect`)."""
