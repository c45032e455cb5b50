"""Serves OTLP over HTTP."""
