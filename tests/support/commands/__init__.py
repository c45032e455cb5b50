"""Runs ``otel-bridge`` and programs in forks of one process that has imported it: most of their time is the start."""
