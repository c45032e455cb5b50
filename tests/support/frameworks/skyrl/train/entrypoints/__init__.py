"""Fake of ``skyrl.train.entrypoints``."""
