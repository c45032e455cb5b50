"""Delivers the records of one exporter: position, retry, throttle, dead letters."""
