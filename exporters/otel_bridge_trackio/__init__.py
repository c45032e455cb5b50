"""Exporter trackio."""
