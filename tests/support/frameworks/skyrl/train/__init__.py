"""Fake of ``skyrl.train``."""
