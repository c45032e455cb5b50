"""Counts what the service does, and shows it as metrics."""
