"""Fake of ``skyrl.train.utils``."""
