"""Fake of ``axolotl.utils``."""
