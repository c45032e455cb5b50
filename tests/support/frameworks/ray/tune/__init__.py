"""Fake of ``ray.tune``."""
