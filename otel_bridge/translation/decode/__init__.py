"""Decoding of OTLP messages, one module for each signal. Pure."""
