"""Fake of ``trinity``."""
