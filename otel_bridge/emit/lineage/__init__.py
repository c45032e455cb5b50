"""Lineage: which rollouts a training step consumed."""
