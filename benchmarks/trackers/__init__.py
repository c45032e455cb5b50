"""Delivery into real trackers: rows a second, latency, CPU, and what wide runs cost."""
