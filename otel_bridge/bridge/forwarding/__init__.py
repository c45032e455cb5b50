"""Implements the exporter ``otlp``: sends the bytes of the segments, unchanged, to the next bridge or Collector."""
