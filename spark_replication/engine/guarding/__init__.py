"""Guardians' machines: who starts, adopts, keeps and stops which broker, and when. No threads, processes or Spark."""
