"""Phases of steps -> one row a step over all ranks."""
