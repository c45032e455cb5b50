"""Implements the process that delivers segments to trackers: reader, ledger, delivery, serving."""
