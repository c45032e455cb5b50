"""Serves the runs of one bridge process: lease, shutdown, outcome of a run, rotation of many runs."""
