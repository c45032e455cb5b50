"""Handling of OTLP messages that several parts share: content, limits, JSON. Pure."""
