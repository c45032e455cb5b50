"""Exporter local."""
