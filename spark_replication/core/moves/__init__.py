"""Who is to have which replica: placement, and plans of reassignments."""
