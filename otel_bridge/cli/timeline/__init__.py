"""Command ``otel-bridge timeline``."""
