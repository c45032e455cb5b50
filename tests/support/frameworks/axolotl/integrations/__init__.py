"""Fake of ``axolotl.integrations``."""
