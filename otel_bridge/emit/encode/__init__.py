"""Encoding of Python values as OTLP bytes, on the caller's thread. Pure."""
