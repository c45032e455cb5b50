"""Delivery of one exporter: position, retry, throttle, dead letters."""
