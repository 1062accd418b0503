"""For people: the command line, the helpers of notebooks, the page."""
