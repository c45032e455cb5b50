"""Serves the runs of one bridge process: lease, shutdown, outcome, rotation of many runs."""
