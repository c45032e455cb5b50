"""Rollouts of a native producer: finished rollouts, batches, and live rollouts."""
