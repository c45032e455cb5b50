"""Runs come and go at a bridge: lease, shutdown, outcome, turns of many runs."""
