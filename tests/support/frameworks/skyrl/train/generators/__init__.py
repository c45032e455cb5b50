"""Fake of ``skyrl.train.generators``."""
