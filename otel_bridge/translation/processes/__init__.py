"""Processes of a run: their order, attempts and ends, and the state of the run. Pure."""
