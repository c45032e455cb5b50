"""Ensures that a bridge runs for the run folder."""
