"""Fake of ``skyrl``."""
