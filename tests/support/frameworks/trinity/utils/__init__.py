"""Fake of ``trinity.utils``."""
