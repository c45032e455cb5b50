"""Fake of ``ray``."""
