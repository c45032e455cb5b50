"""Limits of content, also of single exporters. Pure."""
