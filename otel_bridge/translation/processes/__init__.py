"""The processes of a run: their order, attempts, ends and the state of the run. Pure."""
