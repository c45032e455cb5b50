"""Limits of content, for the run and for single exporters. Pure."""
