"""Writes runs to a W&B server."""
