"""Runs ``otel-bridge`` in forks of one process that has imported it, since most of a command's time is the start."""
