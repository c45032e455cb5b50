"""OTLP as every side reads it: content, limits, JSON, sizes of requests. Pure."""
