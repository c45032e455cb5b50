"""Reads the Prometheus endpoints of inference engines, as a process of the run requests."""
