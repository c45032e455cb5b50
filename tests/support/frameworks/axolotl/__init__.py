"""Fake of ``axolotl``."""
