"""Writes runs to W&B's offline files."""
