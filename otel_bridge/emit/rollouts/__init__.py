"""Rollouts of a native producer: finished ones, batches, and live ones."""
