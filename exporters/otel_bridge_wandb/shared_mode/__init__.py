"""Writes runs with several bridges in W&B's shared mode."""
