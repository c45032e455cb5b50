"""Lineage: which rollouts each training step consumed -> rows, and the steps of each rollout."""
