"""Fake of ``trinity.common``."""
